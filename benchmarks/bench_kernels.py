"""How fast each op's implementations are on this machine: on a CPU C, torch's operators and the
reference; on a GPU Triton and the reference. At last the products of a layer and the head.

Runs alternate, so that a busy machine slows all alike; the best of each counts.

    python -m benchmarks.bench_kernels --threads 1 --dtype float32
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch

from kernels.copy_blocks import copy_blocks
from kernels.cpu.library import library
from kernels.cpu.linear import linear_c, pack
from kernels.dispatch import Implementation, forced
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.rms_norm import rms_norm
from kernels.rotary import apply_rotary
from kernels.silu_mul import silu_mul
from kernels.store_kv import store_kv

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE = 9, 3, 64, 576, 1536  # SmolLM2-135M
BLOCK_SIZE = 16
NUM_BLOCKS = 1024
STEPS = {  # name -> (number of sequences, query length, context length)
    "decode 1 at 1000": (1, 1, 1000),
    "decode 32 at 256": (32, 1, 256),
    "prefill 128 at 1000": (1, 128, 1000),
}

PRODUCTS = {  # name -> (in_features, out_features)
    "qkv": (HIDDEN, 960),
    "output": (HIDDEN, HIDDEN),
    "gate_up": (HIDDEN, 2 * INTERMEDIATE),
    "down": (INTERMEDIATE, HIDDEN),
    "head": (HIDDEN, 49152),
}

Case = tuple[str, Callable[[], object]]


def token_ops(num_tokens: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """The ops that work token by token."""
    x = torch.randn(num_tokens, HIDDEN).to(device, dtype)
    weight = torch.randn(HIDDEN).to(device, dtype)
    yield f"rms_norm {num_tokens}", lambda: rms_norm(x, weight, 1e-5)
    gate_up = torch.randn(num_tokens, 2 * INTERMEDIATE).to(device, dtype)
    yield f"silu_mul {num_tokens}", lambda: silu_mul(gate_up)
    query = torch.randn(num_tokens, NUM_HEADS, HEAD_DIM).to(device, dtype)
    key = torch.randn(num_tokens, NUM_KV_HEADS, HEAD_DIM).to(device, dtype)
    angles = torch.randn(2048, HEAD_DIM // 2, device=device)
    positions = torch.arange(num_tokens, device=device)
    cos, sin = angles.cos(), angles.sin()
    yield f"apply_rotary {num_tokens}", lambda: apply_rotary(query, key, cos, sin, positions)
    caches = torch.zeros(2, NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM).to(device, dtype)
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE, device=device)[:num_tokens]
    yield f"store_kv {num_tokens}", lambda: store_kv(key, key, caches[0], caches[1], slots)


def block_copies(num_copies: int, dtype: torch.dtype, device: torch.device) -> Case:
    """As many forks in one step, of one layer."""
    caches = torch.randn(2, NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM).to(device, dtype)
    copies = torch.randperm(NUM_BLOCKS, device=device)[: 2 * num_copies].view(-1, 2)
    return f"copy_blocks {num_copies}", lambda: copy_blocks(caches[0], caches[1], copies)


def attention(name: str, dtype: torch.dtype, device: torch.device) -> Case:
    """One step of `STEPS`, its blocks scattered over the cache."""
    num_seqs, query_len, context_len = STEPS[name]
    query = torch.randn(num_seqs * query_len, NUM_HEADS, HEAD_DIM).to(device, dtype)
    caches = torch.randn(2, NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM).to(device, dtype)
    blocks_each = -(-context_len // BLOCK_SIZE)
    blocks = torch.randperm(NUM_BLOCKS)[: num_seqs * blocks_each].view(num_seqs, -1)
    metadata = AttentionMetadata.build(
        query_lens=[query_len] * num_seqs,
        context_lens=[context_len] * num_seqs,
        block_tables=blocks.tolist(),
        device=device,
    )
    return name, lambda: paged_attention(query, caches[0], caches[1], metadata, HEAD_DIM**-0.5)


def best_us(
    calls: Mapping[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, float]:
    """Microseconds of the fastest run of each."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds + 1):  # the first warms up what the others find warm
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best[name] = min(best[name], (time.perf_counter() - start) * 1e6)
    return best


def as_implementation(
    implementation: Implementation, call: Callable[[], object]
) -> Callable[[], object]:
    """The call, that implementation forced."""

    def run() -> object:
        with forced(implementation):
            return call()

    return run


def compare_ops(
    cases: Iterable[Case], own: Sequence[Implementation], rounds: int, device: torch.device
) -> None:
    """One line per op: a column for each implementation, and the reference's."""
    columns: list[Implementation] = [*own, "reference"]
    print(f"{'op, us':22s}" + "".join(f"{column:>12s}" for column in columns))
    for name, call in cases:
        best = best_us({c: as_implementation(c, call) for c in columns}, rounds, device)
        print(f"{name:22s}" + "".join(f"{best[column]:12.0f}" for column in columns))


def compare_products(rounds: int, device: torch.device) -> None:
    """Ours beside torch's, which for bits of its own would need rows in multiples of 4 as well."""
    print(f"{'product, us':22s}{'c':>12s}{'torch.mm':>12s}")
    for name, shape in PRODUCTS.items():
        matrix = torch.randn(shape)
        packed = pack(matrix)
        for num_rows in (1, 2, 4, 8, 16, 32, 128):
            x = torch.randn(num_rows, shape[0])
            best = best_us(
                {"c": partial(linear_c, x, packed), "torch": partial(torch.mm, x, matrix)},
                rounds,
                device,
            )
            print(f"{name} {num_rows}".ljust(22) + f"{best['c']:12.0f}{best['torch']:12.0f}")


def main() -> None:
    """Parse the command line, run every op, print one line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype: torch.dtype = getattr(torch, options.dtype)
    device = torch.device(options.device)
    has_c = device.type == "cpu" and dtype == torch.float32 and library() is not None
    own: list[Implementation] = ["triton"] if device.type == "cuda" else ["cpu"]
    cases = [case for num_tokens in (1, 32, 128) for case in token_ops(num_tokens, dtype, device)]
    cases += [block_copies(num_copies, dtype, device) for num_copies in (1, 3, 31)]
    cases += [attention(name, dtype, device) for name in STEPS]
    compare_ops(cases, ["c", *own] if has_c else own, options.rounds, device)
    if has_c:
        compare_products(options.rounds, device)


if __name__ == "__main__":
    main()
