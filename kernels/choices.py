"""The table of implementations: for each op, type of device, dtype and width of rows, the one that
was measured fastest, and by how much.

The width of a row (its last dimension: hidden size, head_dim) is all a choice knows of a shape. The
number of rows, of sequences and of their tokens differ from step to step: a choice that knew them
would make an answer depend, in its last bits, on who shares its steps.

Measured by `benchmarks/bench_kernels.py` for SmolLM2-135M, Qwen3-0.6B, Llama-3.2-1B and Gemma 3
270M at 1, 8, 32 and 128 rows; 1 thread, AVX-512. `docs/kernels.md` says how, and what came out. No
width of these models wants another choice than the others, so the only limit is what C can hold.
Knows neither the ops nor what this machine has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

Implementation = Literal["reference", "torch", "c", "triton"]


@dataclass(frozen=True, slots=True)
class Line:
    """One implementation, what it takes, and why it stands where it does."""

    implementation: Implementation
    evidence: str
    dtype: torch.dtype | None = None  # None: any
    widest: int | None = None  # elements of a row; None: any number

    def obstacle(self, dtype: torch.dtype, width: int, *, has_c: bool) -> str:
        """What keeps it from running; empty if nothing does."""
        if self.implementation == "c" and not has_c:
            return "c could not be built"
        if self.dtype not in (None, dtype):
            return f"{self.implementation} takes {name_of(self.dtype)} alone"
        if self.widest is not None and width > self.widest:
            return f"{self.implementation} takes rows of up to {self.widest}"
        return ""


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs. `why`: what was measured, or what kept a faster one from running."""

    implementation: Implementation
    why: str


def _c(least: float, median: float, widest: int | None = None) -> Line:
    """Over all shapes and numbers of rows, so many times as fast as torch's operators."""
    evidence = f"{median} times as fast as torch, at least {least}"
    return Line("c", evidence, dtype=torch.float32, widest=widest)


def _torch(least: float, median: float) -> Line:
    """In bfloat16, so many times as fast as the reference."""
    return Line("torch", f"{median} times as fast as the reference, at least {least}")


_ONLY_TORCH = Line("torch", "the only one")
_TRITON = Line("triton", "not measured")

# Type of device -> op -> the fastest first; the last takes everything.
TABLE: Mapping[str, Mapping[str, tuple[Line, ...]]] = {
    "cpu": {
        "apply_rotary": (_c(3.8, 4.3), _torch(1.1, 1.4)),
        "copy_blocks": (_ONLY_TORCH,),
        "gelu_mul": (_ONLY_TORCH,),
        "paged_attention": (_c(0.89, 2.2, widest=256), _torch(0.96, 1.7)),
        "product": (_c(1.1, 1.9), _ONLY_TORCH),
        "rms_norm": (_c(0.97, 1.8), _torch(1.1, 1.3)),
        "silu_mul": (_c(2.3, 3.4), _ONLY_TORCH),
        "store_kv": (_c(3.4, 4.6), _ONLY_TORCH),
    },
    "cuda": {
        "apply_rotary": (_TRITON,),
        "copy_blocks": (_TRITON,),
        "gelu_mul": (_TRITON,),
        "paged_attention": (_TRITON,),
        "product": (_ONLY_TORCH,),
        "rms_norm": (_TRITON,),
        "silu_mul": (_TRITON,),
        "store_kv": (_TRITON,),
    },
}


def select(op: str, device_type: str, dtype: torch.dtype, width: int, *, has_c: bool) -> Choice:
    """The first line of the table that can run. width: elements of a row; has_c: whether the C
    kernels could be built.

    Raises:
        NotImplementedError: there is none for this type of device.
    """
    if device_type not in TABLE:
        raise NotImplementedError(f"{op} runs on {' and '.join(TABLE)}, not on {device_type!r}")
    lines = TABLE[device_type][op]
    obstacles = [line.obstacle(dtype, width, has_c=has_c) for line in lines]
    first = obstacles.index("")
    return Choice(
        lines[first].implementation, "; ".join(obstacles[:first]) or lines[first].evidence
    )


def name_of(dtype: torch.dtype | None) -> str:
    """As torch spells it, without its prefix."""
    return str(dtype).removeprefix("torch.")
