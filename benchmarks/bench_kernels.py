"""How much faster each op's own implementation is than its reference, on this machine.

Runs of the two alternate, so that a busy machine slows both alike; the best of each counts.

    python -m benchmarks.bench_kernels --threads 1 --dtype float32
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch

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
    call: Callable[[], object], own: Implementation, rounds: int, device: torch.device
) -> tuple[float, float]:
    """Microseconds of the fastest run: of the device's own implementation, of the reference."""
    best = {own: float("inf"), "reference": float("inf")}
    for _ in range(rounds + 1):  # the first warms up what the second finds warm
        for implementation in best:
            with forced(implementation):
                start = time.perf_counter()
                call()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                elapsed_us = (time.perf_counter() - start) * 1e6
            best[implementation] = min(best[implementation], elapsed_us)
    return best[own], best["reference"]


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
    own: Implementation = "cpu" if device.type == "cpu" else "triton"
    cases = [case for num_tokens in (1, 32, 128) for case in token_ops(num_tokens, dtype, device)]
    cases += [attention(name, dtype, device) for name in STEPS]
    print(f"{'op':22s}{own:>10s}{'reference':>12s}{'ratio':>8s}   us, {options.threads} threads")
    for name, call in cases:
        own_us, reference_us = best_us(call, own, options.rounds, device)
        print(f"{name:22s}{own_us:10.0f}{reference_us:12.0f}{reference_us / own_us:8.2f}")


if __name__ == "__main__":
    main()
