"""How fast each op's implementations are on this machine, for the shapes of four models: what the
table in `kernels/choices.py` is made of.

    python -m benchmarks.bench_kernels --dtype float32
    python -m benchmarks.bench_kernels --dtype bfloat16

A line per op, shape and number of rows, in microseconds, then `ratio NAME VALUE`: how many times as
fast an implementation is as the next one in that line. At the end come, per op, the least and the
median of these ratios, which are the table's numbers. Runs alternate, so that a busy machine slows
all alike; the best of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

import torch

from kernels.choices import TABLE, Implementation
from kernels.copy_blocks import copy_blocks
from kernels.cpu.library import library
from kernels.cpu.linear import linear_c, pack
from kernels.dispatch import forced
from kernels.gelu_mul import gelu_mul
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.rms_norm import rms_norm
from kernels.rotary import apply_rotary
from kernels.silu_mul import silu_mul
from kernels.store_kv import store_kv

ROWS = (1, 8, 32, 128)
BLOCK_SIZE = 16
CONTEXT_LEN = 256  # of each sequence that decodes
PREFILL = (128, 1000)  # rows of one chunk and its context
MAX_POSITIONS = 2048
PADDING = 4  # rows come in multiples of it, or torch's product would depend on the batch
LEAST_RUNS = 5
LARGEST_MATRIX = 160_000_000  # elements: four of them, packed and not, are 2.6 GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What of a model its ops' shapes follow from."""

    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Name -> (in_features, out_features)."""
        query_size = self.num_heads * self.head_dim
        return {
            "qkv": (self.hidden, query_size + 2 * self.num_kv_heads * self.head_dim),
            "output": (query_size, self.hidden),
            "gate_up": (self.hidden, 2 * self.intermediate),
            "down": (self.intermediate, self.hidden),
            "head": (self.hidden, self.vocab_size),
        }


MODELS = {
    "SmolLM2-135M": Shapes(
        hidden=576, intermediate=1536, num_heads=9, num_kv_heads=3, head_dim=64, vocab_size=49152
    ),
    "Qwen3-0.6B": Shapes(
        hidden=1024, intermediate=3072, num_heads=16, num_kv_heads=8, head_dim=128,
        vocab_size=151936,
    ),
    "Llama-3.2-1B": Shapes(
        hidden=2048, intermediate=8192, num_heads=32, num_kv_heads=8, head_dim=64,
        vocab_size=128256,
    ),
    "Gemma-3-270M": Shapes(
        hidden=640, intermediate=2048, num_heads=4, num_kv_heads=1, head_dim=256,
        vocab_size=262144,
    ),
}  # fmt: skip

Call = Callable[[], object]
Case = tuple[str, Call]  # op/shape/rows


def ops(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """The ops of a layer, in every number of rows."""
    for num_rows in ROWS:
        yield from token_ops(shapes, num_rows, dtype, device)
        yield attention(shapes, [1] * num_rows, [CONTEXT_LEN] * num_rows, dtype, device)
    yield attention(shapes, [PREFILL[0]], [PREFILL[1]], dtype, device)


def token_ops(
    shapes: Shapes, num_rows: int, dtype: torch.dtype, device: torch.device
) -> Iterator[Case]:
    """The ops that work token by token."""
    heads, kv_heads, head_dim = shapes.num_heads, shapes.num_kv_heads, shapes.head_dim
    for count, width in ((num_rows, shapes.hidden), (num_rows * heads, head_dim)):
        x, weight = (
            torch.randn(count, width).to(device, dtype),
            torch.randn(width).to(device, dtype),
        )
        yield f"rms_norm/{width}/{count}", partial(rms_norm, x, weight, 1e-5)
    gate_up = torch.randn(num_rows, 2 * shapes.intermediate).to(device, dtype)
    yield f"silu_mul/{shapes.intermediate}/{num_rows}", partial(silu_mul, gate_up)
    yield f"gelu_mul/{shapes.intermediate}/{num_rows}", partial(gelu_mul, gate_up)
    query = torch.randn(num_rows, heads, head_dim).to(device, dtype)
    key = torch.randn(num_rows, kv_heads, head_dim).to(device, dtype)
    angles = torch.randn(MAX_POSITIONS, head_dim // 2, device=device)
    positions = torch.arange(num_rows, device=device)
    turn = partial(apply_rotary, query, key, angles.cos(), angles.sin(), positions)
    yield f"apply_rotary/{heads}+{kv_heads}x{head_dim}/{num_rows}", turn
    caches = torch.zeros(2, num_rows, kv_heads, BLOCK_SIZE, head_dim).to(device, dtype)
    slots = torch.randperm(num_rows * BLOCK_SIZE, device=device)[:num_rows]
    store = partial(store_kv, key, key, caches[0], caches[1], slots)
    yield f"store_kv/{kv_heads}x{head_dim}/{num_rows}", store
    copies = torch.arange(num_rows, device=device).view(-1, 1).expand(-1, 2).contiguous()
    copy = partial(copy_blocks, caches[0], caches[1], copies)
    yield f"copy_blocks/{kv_heads}x{head_dim}/{num_rows}", copy


def attention(
    shapes: Shapes,
    query_lens: list[int],
    context_lens: list[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Case:
    """One step over sequences of one length, their blocks scattered over the cache."""
    blocks_each = -(-context_lens[0] // BLOCK_SIZE)
    blocks = torch.randperm(len(context_lens) * blocks_each).view(len(context_lens), -1)
    cache = (2, blocks.numel(), shapes.num_kv_heads, BLOCK_SIZE, shapes.head_dim)
    caches = torch.randn(cache).to(device, dtype)
    num_rows = sum(query_lens)
    query = torch.randn(num_rows, shapes.num_heads, shapes.head_dim).to(device, dtype)
    metadata = AttentionMetadata.build(
        query_lens=query_lens,
        context_lens=context_lens,
        block_tables=blocks.tolist(),
        device=device,
    )
    kind = "decode" if query_lens[0] == 1 else "prefill"
    heads = f"{shapes.num_heads}:{shapes.num_kv_heads}x{shapes.head_dim}"
    scale = shapes.head_dim**-0.5
    call = partial(paged_attention, query, caches[0], caches[1], metadata, scale)
    return f"paged_attention/{heads}/{kind}{num_rows}", call


def products(shapes: Shapes) -> Iterator[tuple[str, dict[str, Call]]]:
    """float32 on the CPU: ours, and torch's with its rows padded."""
    for name, (in_features, out_features) in shapes.products.items():
        if in_features * out_features > LARGEST_MATRIX:
            continue
        matrix = torch.randn(in_features, out_features)
        packed = pack(matrix)
        for num_rows in ROWS:
            padded = torch.randn(max(num_rows, PADDING), in_features)
            yield (
                f"product/{name}{in_features}x{out_features}/{num_rows}",
                {
                    "c": partial(linear_c, padded[:num_rows], packed),
                    "torch": partial(torch.mm, padded, matrix),
                },
            )


def best_us(calls: Mapping[str, Call], seconds: float, device: torch.device) -> dict[str, float]:
    """Microseconds of the fastest run of each."""
    best = dict.fromkeys(calls, float("inf"))
    deadline = time.perf_counter() + seconds
    num_runs = 0
    while num_runs < LEAST_RUNS or time.perf_counter() < deadline:
        num_runs += 1
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best[name] = min(best[name], (time.perf_counter() - start) * 1e6)
    return best


def as_implementation(implementation: Implementation, call: Call) -> Call:
    """The call, that implementation forced."""

    def run() -> object:
        with forced(implementation):
            return call()

    return run


def implementations(op: str, dtype: torch.dtype, device: torch.device) -> list[Implementation]:
    """Those of the table that can run, then the reference. No shape here is too wide for one."""
    has_c = device.type == "cpu" and library() is not None
    lines = TABLE[device.type][op]
    able = [line.implementation for line in lines if not line.obstacle(dtype, 1, has_c=has_c)]
    return [*able, "reference"]


def comparisons(
    shapes: Shapes, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, dict[str, Call]]]:
    """Every op of a model, and what is compared of it."""
    for name, call in ops(shapes, dtype, device):
        able = implementations(name.partition("/")[0], dtype, device)
        yield name, {one: as_implementation(one, call) for one in able}
    if "c" in implementations("product", dtype, device):
        yield from products(shapes)


def print_ratios(name: str, best: Mapping[str, float]) -> dict[str, float]:
    """Each implementation against the next one, by a name without the shape."""
    ratios = {}
    op, shape = name.split("/", 1)
    for (one, one_us), (other, other_us) in pairwise(best.items()):
        print(f"ratio {op}/{one}_over_{other}/{shape} {other_us / one_us:.2f}")
        ratios[f"{op}/{one}_over_{other}"] = other_us / one_us
    return ratios


def main() -> None:
    """Parse the command line, run every op, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each comparison")
    parser.add_argument("--model", choices=[*MODELS], nargs="*", default=[*MODELS])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype, device = getattr(torch, options.dtype), torch.device(options.device)
    gathered: dict[str, list[float]] = defaultdict(list)
    for model in options.model:
        print(f"# {model} {options.dtype} on {device}, {options.threads} threads")
        for name, calls in comparisons(MODELS[model], dtype, device):
            best = best_us(calls, options.seconds, device)
            print(f"{name:44s}" + "".join(f"{who:>12s}{us:10.1f}" for who, us in best.items()))
            for pair, ratio in print_ratios(name, best).items():
                gathered[pair].append(ratio)
    for pair, values in gathered.items():
        print(f"ratio {pair}/least {min(values):.2f}")
        print(f"ratio {pair}/median {median(values):.2f}")


if __name__ == "__main__":
    main()
