"""How the engine is set up: TGI's names and defaults, and what they come to over a runner.

Names, defaults and meanings are those of text-generation-inference's launcher; `max_bypass` is
ours. `docs/priority_batcher.md` has them in a table. Needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from native_engine.config import Check, RunnerConfig
from native_engine.errors import EngineError
from native_engine.types import Runner

SPARE_PREFILL_TOKENS = 50
"""TGI's: what a prefill may take beyond the longest prompt, if nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityBatcherConfig(RunnerConfig):
    """The options of one process of the engine. Raises as its base."""

    max_concurrent_requests: int = 128  # here at once, waiting or running; more are refused
    max_input_tokens: int = 0  # of one prompt; 0: all that `max_total_tokens` leaves
    max_total_tokens: int = 0  # of prompt and answer; 0: what context and pool hold
    waiting_served_ratio: float = 0.3  # a batch pauses for so many waiting per running, or more
    max_batch_prefill_tokens: int = 0  # of one prefill; 0: max_input_tokens + 50
    max_batch_total_tokens: int = 0  # reserved at once; 0: what the pool holds
    max_waiting_tokens: int = 20  # after so many a batch pauses for any; also what a class ages by
    max_batch_size: int = 0  # sequences that run at once; 0: no limit
    chunking: bool = False  # prefill in chunks, beside the decodes
    default_generation_length: int = 1024  # tokens reserved for an answer at a time
    max_bypass: int = 4  # of lower classes, that may go before one that does not fit yet
    kv_cache_bytes: int = 0  # 0: `max_batch_total_tokens`, or else a share of the free memory
    prefix_caching: bool = True  # find KV blocks of earlier prompts that begin alike

    def cache_bytes(self) -> int:
        return self.kv_cache_bytes

    def cache_tokens(self, max_model_len: int) -> int:
        return self.max_batch_total_tokens

    def max_step_rows(self, max_model_len: int) -> int:
        longest = self.max_input_tokens or max_model_len
        prefill = self.max_batch_prefill_tokens or longest + SPARE_PREFILL_TOKENS
        return max(prefill + self.block_size, self.max_concurrent_requests)

    def max_drawn_rows(self) -> int:
        return self.max_concurrent_requests

    def reserved_until(self, num_known_tokens: int, max_num_tokens: int) -> int:
        """With how many known tokens the next admission of a request ends, of `max_num_tokens`.

        An answer is reserved in parts, unless what is known by the end of this part could not be
        prefilled at once to go on from. Of a resolved config only.
        """
        part = num_known_tokens + self.default_generation_length
        if part < max_num_tokens and (self.chunking or part <= self.max_batch_prefill_tokens):
            return part
        return max(
            num_known_tokens + 1, max_num_tokens
        )  # no token wanted: one is drawn all the same

    def checks(self) -> tuple[Check, ...]:
        return (
            *RunnerConfig.checks(self),
            (
                1 <= self.max_concurrent_requests <= 4096,
                "max_concurrent_requests must be in [1, 4096]",
            ),
            (self.max_input_tokens >= 0, "max_input_tokens must be 0 (automatic) or more"),
            (self.max_total_tokens >= 0, "max_total_tokens must be 0 (automatic) or more"),
            (
                not self.max_total_tokens or self.max_input_tokens < self.max_total_tokens,
                "max_input_tokens must be below max_total_tokens, to leave room for an answer",
            ),
            (
                0 <= self.waiting_served_ratio < math.inf,
                "waiting_served_ratio must be 0 or more, and finite",
            ),
            (
                self.max_batch_prefill_tokens >= 0,
                "max_batch_prefill_tokens must be 0 (max_input_tokens + 50) or more",
            ),
            (
                self.chunking
                or not self.max_batch_prefill_tokens
                or self.max_input_tokens <= self.max_batch_prefill_tokens,
                "max_batch_prefill_tokens must be at least max_input_tokens without chunking",
            ),
            *self._checks_of_batches(),
        )

    def _checks_of_batches(self) -> tuple[Check, ...]:
        return (
            (
                self.max_batch_total_tokens >= 0,
                "max_batch_total_tokens must be 0 (what the pool holds) or more",
            ),
            (
                not self.max_batch_total_tokens
                or self.max_total_tokens <= self.max_batch_total_tokens,
                "max_batch_total_tokens must be at least max_total_tokens",
            ),
            (
                not (self.kv_cache_bytes and self.max_batch_total_tokens),
                "kv_cache_bytes and max_batch_total_tokens both size the pool; set one of them",
            ),
            (self.kv_cache_bytes >= 0, "kv_cache_bytes must be 0 (automatic) or more"),
            (self.max_waiting_tokens >= 1, "max_waiting_tokens must be at least 1"),
            (self.max_batch_size >= 0, "max_batch_size must be 0 (no limit) or more"),
            (self.default_generation_length >= 1, "default_generation_length must be at least 1"),
            (self.max_bypass >= 0, "max_bypass must be at least 0"),
        )


def resolve(config: PriorityBatcherConfig, runner: Runner) -> PriorityBatcherConfig:
    """The same with every limit known, none 0.

    Raises:
        EngineError: a limit is more than the model's context or the runner's blocks hold.
    """
    pool = runner.num_blocks * runner.block_size
    batch_total = config.max_batch_total_tokens or pool
    longest = min(runner.max_model_len, pool, batch_total)
    total = config.max_total_tokens or longest
    prefill = config.max_batch_prefill_tokens
    most = total - 1 if config.chunking or not prefill else min(total - 1, prefill)
    longest_input = config.max_input_tokens or most
    checks = (
        (batch_total <= pool, f"max_batch_total_tokens is {batch_total}, the pool holds {pool}"),
        (
            total <= longest,
            f"max_total_tokens is {total}, and context and pool hold {longest}: lower it, or give "
            "the engine more memory",
        ),
        (
            longest_input < total,
            f"max_input_tokens is {longest_input}, which leaves no room for an answer in {total} "
            "tokens of context",
        ),
    )
    for holds, message in checks:
        if not holds:
            raise EngineError(message)
    return replace(
        config,
        max_input_tokens=longest_input,
        max_total_tokens=total,
        max_batch_prefill_tokens=prefill or longest_input + SPARE_PREFILL_TOKENS,
        max_batch_total_tokens=batch_total,
        max_batch_size=min(
            config.max_batch_size or config.max_concurrent_requests, config.max_concurrent_requests
        ),
        kv_cache_bytes=0,
    )
