"""The table, fixed: what runs for each op, device, dtype and width of our models."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from kernels.choices import TABLE, Implementation, Line, name_of, select
from kernels.cpu.paged_attention_c import max_head_dim

DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OURS = ("apply_rotary", "paged_attention", "product", "rms_norm", "silu_mul", "store_kv")
PLAIN = ("copy_blocks", "gelu_mul")

# SmolLM2-135M, Qwen3-0.6B, Llama-3.2-1B, Gemma 3 270M
HEAD_DIMS, HIDDEN = (64, 128, 64, 256), (576, 1024, 2048, 640)
QUERY, INTERMEDIATE = (576, 2048, 2048, 1024), (1536, 3072, 8192, 2048)
WIDTHS = {
    "apply_rotary": HEAD_DIMS,
    "copy_blocks": HEAD_DIMS,
    "gelu_mul": tuple(2 * size for size in INTERMEDIATE),
    "paged_attention": HEAD_DIMS,
    "product": HIDDEN + QUERY + INTERMEDIATE,
    "rms_norm": HIDDEN + HEAD_DIMS,
    "silu_mul": tuple(2 * size for size in INTERMEDIATE),
    "store_kv": HEAD_DIMS,
}


def chosen(op: str, device_type: str, dtype: torch.dtype, *, has_c: bool) -> set[Implementation]:
    """What runs for the widths of all our models."""
    widths = WIDTHS[op]
    return {select(op, device_type, dtype, w, has_c=has_c).implementation for w in widths}


def test_every_device_has_every_op() -> None:
    assert [*TABLE] == ["cpu", "cuda"]
    for by_op in TABLE.values():
        assert sorted(by_op) == sorted(OURS + PLAIN) == sorted(WIDTHS)


@pytest.mark.parametrize("op", OURS)
def test_c_runs_float32_on_the_cpu_where_it_could_be_built(op: str) -> None:
    assert chosen(op, "cpu", torch.float32, has_c=True) == {"c"}
    assert chosen(op, "cpu", torch.float32, has_c=False) == {"torch"}


@pytest.mark.parametrize(("op", "dtype"), [*product(OURS + PLAIN, DTYPES)])
def test_torch_runs_all_the_rest_on_the_cpu(op: str, dtype: torch.dtype) -> None:
    assert chosen(op, "cpu", dtype, has_c=False) == {"torch"}
    if op in PLAIN or dtype != torch.float32:
        assert chosen(op, "cpu", dtype, has_c=True) == {"torch"}


@pytest.mark.parametrize(("op", "dtype"), [*product(OURS + PLAIN, DTYPES)])
def test_triton_runs_all_but_products_on_a_gpu(op: str, dtype: torch.dtype) -> None:
    expected = {"torch"} if op == "product" else {"triton"}
    assert chosen(op, "cuda", dtype, has_c=False) == expected


def test_a_choice_says_what_was_measured_or_what_was_in_the_way() -> None:
    def why(op: str, dtype: torch.dtype, width: int, *, has_c: bool = True) -> str:
        return select(op, "cpu", dtype, width, has_c=has_c).why

    measured = "3.4 times as fast as torch, at least 2.3"
    assert why("silu_mul", torch.float32, 3072) == measured
    assert why("silu_mul", torch.float32, 3072, has_c=False) == "c could not be built"
    assert why("silu_mul", torch.bfloat16, 3072) == "c takes float32 alone"
    assert why("paged_attention", torch.float32, 257) == "c takes rows of up to 256"
    assert why("gelu_mul", torch.float32, 4096) == "the only one"


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="rms_norm runs on cpu and cuda, not on 'xpu'"):
        select("rms_norm", "xpu", torch.float32, 576, has_c=True)


def test_the_last_line_of_an_op_takes_everything() -> None:
    for by_op in TABLE.values():
        for *_, last in by_op.values():
            assert (last.dtype, last.widest) == (None, None)
            assert last.implementation != "c"


def test_the_widest_head_of_the_table_is_the_kernels() -> None:
    assert TABLE["cpu"]["paged_attention"][0].widest == max_head_dim()


def test_the_table_in_the_docs_is_this_table() -> None:
    def row(op: str, device_type: str, line: Line) -> str:
        dtype = name_of(line.dtype) if line.dtype else "any"
        widest = f"to {line.widest}" if line.widest else "any"
        cells = (op, device_type, dtype, widest, line.implementation, line.evidence)
        return f"| {' | '.join(cells)} |"

    lines = DOCS.read_text().splitlines()
    printed = [line for line in lines if line.startswith("| ") and line.split()[1] in WIDTHS]
    assert printed == [
        row(op, device_type, line)
        for device_type, by_op in TABLE.items()
        for op, entries in by_op.items()
        for line in entries
    ]
