"""How a local engine is set up. Needs no torch; every option is checked when it is built.

`RunnerConfig` is what engines of every kind have in common: the device side. `EngineConfig` is the
native engine's own.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

DType = Literal["auto", "float32", "bfloat16", "float16"]
Speculation = Literal["off", "prompt_lookup"]


Check = tuple[bool, str]
"""What has to hold, and what to say if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig(ABC):
    """Model and device of one engine process. 0 means: found out when the engine starts.

    Raises:
        ValueError: an option is out of range; the message names it.
    """

    model: Path  # a GGUF file, or a folder with config.json and safetensors
    dtype: DType = "auto"  # float32 on a CPU, bfloat16 on CUDA
    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto takes CUDA if there is one
    block_size: int = 16  # tokens per KV block
    max_model_len: int = 0  # tokens of context; 0: what the model was made for
    cpu_threads: int = 0  # 0: the cores this process may use, less one
    num_token_ids: int = 0  # ids the tokenizer knows; 0: all rows of the model's embedding

    def __post_init__(self) -> None:
        for holds, message in self.checks():
            if not holds:
                raise ValueError(message)

    def cache_bytes(self) -> int:
        """What the KV cache may take; 0: a share of the free memory."""
        return 0

    def cache_tokens(self, max_model_len: int) -> int:
        """How many tokens the KV cache has to hold; 0: as many as fit `cache_bytes`."""
        return 0

    @abstractmethod
    def max_step_rows(self, max_model_len: int) -> int:
        """The most tokens that one step computes."""

    @abstractmethod
    def max_drawn_rows(self) -> int:
        """The most tokens that one step draws."""

    def checks(self) -> tuple[Check, ...]:
        """What has to hold of the options."""
        block_size = self.block_size
        return (
            (self.dtype in get_args(DType), f"dtype must be one of {get_args(DType)}"),
            (
                re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None,
                "device must be auto, cpu, cuda or cuda:N",
            ),
            (
                8 <= block_size <= 256 and not block_size & (block_size - 1),
                "block_size must be a power of two in [8, 256]",
            ),
            (self.max_model_len >= 0, "max_model_len must be 0 (the model's own) or more"),
            (0 <= self.cpu_threads <= 1024, "cpu_threads must be in [0, 1024]; 0 is automatic"),
            (self.num_token_ids >= 0, "num_token_ids must be 0 (the model's own) or more"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(RunnerConfig):
    """The options of one process of the native engine. Raises as its base."""

    max_num_seqs: int = 32  # sequences that run at once
    max_num_batched_tokens: int = 128  # tokens computed in one step
    max_waiting: int = 256  # requests that queue
    max_waiting_tokens: int = 0  # prompt tokens that queue; 0: as many as the requests have
    max_bypass: int = 4  # smaller requests that may go before one that does not fit yet
    aging_s: float = 30.0  # a class that waits so long counts as one higher
    target_itl_s: float = 0.25  # a step with decodes takes no more prompt tokens than fit; 0: off
    kv_cache_bytes: int = 0  # 0: a share of the free memory, see `model_runner`
    prefix_caching: bool = True  # find KV blocks of earlier prompts that begin alike
    max_cached_share: float = (
        0.5  # of the pool, for one tenant's free cached blocks where others' would be overwritten
    )
    speculation: Speculation = "off"  # guess tokens ahead and verify them; outputs stay the same
    max_draft_tokens: int = 7  # guesses of one sequence in one step

    def cache_bytes(self) -> int:
        return self.kv_cache_bytes

    def max_step_rows(self, max_model_len: int) -> int:
        return self.max_num_batched_tokens

    def max_drawn_rows(self) -> int:
        return self.max_num_seqs

    def checks(self) -> tuple[Check, ...]:
        return (
            *RunnerConfig.checks(self),
            (1 <= self.max_num_seqs <= 1024, "max_num_seqs must be in [1, 1024]"),
            (
                self.max_num_seqs <= self.max_num_batched_tokens <= 2**16,
                "max_num_batched_tokens must be in [max_num_seqs, 65536]: "
                "every running sequence gets a token in each step",
            ),
            (self.max_waiting >= 0, "max_waiting must be at least 0"),
            (self.max_waiting_tokens >= 0, "max_waiting_tokens must be 0 (no limit) or more"),
            (self.max_bypass >= 0, "max_bypass must be at least 0"),
            (0 < self.aging_s < math.inf, "aging_s must be above 0 and finite"),
            (0 <= self.target_itl_s < math.inf, "target_itl_s must be 0 (off) or more, and finite"),
            (self.kv_cache_bytes >= 0, "kv_cache_bytes must be 0 (automatic) or more"),
            (0 < self.max_cached_share <= 1, "max_cached_share must be in (0, 1]"),
            (
                self.speculation in get_args(Speculation),
                f"speculation must be one of {get_args(Speculation)}",
            ),
            (1 <= self.max_draft_tokens <= 64, "max_draft_tokens must be in [1, 64]"),
        )
