"""The options of a static-batch engine, and what they come to with a model. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from native_engine.config import Check, RunnerConfig

AUTOMATIC_INPUT_TOKENS, AUTOMATIC_NEW_TOKENS = 2048, 1024
"""1.1 GB for 8 rows of SmolLM2-135M in float32. All of its context would be 6 GB, most of which no
request ever uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatchConfig(RunnerConfig):
    """The options of one engine process. Raises as its base."""

    max_batch_size: int = 8  # requests that are computed together
    batch_timeout_s: float = 0.02  # how long the first of a batch waits for others
    max_input_tokens: int = 0  # of one prompt; 0: what the context holds, 2048 at most
    max_new_tokens: int = 0  # of one answer; 0: what the context holds, 1024 at most
    max_waiting: int = 256  # requests that queue

    def input_tokens(self, max_model_len: int) -> int:
        """The most that one prompt has."""
        return self.max_input_tokens or min(max_model_len - 1, AUTOMATIC_INPUT_TOKENS)

    def new_tokens(self, max_model_len: int) -> int:
        """The most that one answer has."""
        return self.max_new_tokens or min(max_model_len - 1, AUTOMATIC_NEW_TOKENS)

    def region_blocks(self, max_model_len: int, block_size: int) -> int:
        """What is reserved for one row: as much padding as the longest prompt may need, or that
        prompt, and the longest answer. One more, for padding ends with a block.
        """
        columns = self.input_tokens(max_model_len) + self.new_tokens(max_model_len)
        return -(-columns // block_size) + 1

    def cache_tokens(self, max_model_len: int) -> int:
        blocks = self.max_batch_size * self.region_blocks(max_model_len, self.block_size)
        return blocks * self.block_size

    def max_step_rows(self, max_model_len: int) -> int:
        return self.max_batch_size * self.input_tokens(max_model_len)

    def max_drawn_rows(self) -> int:
        return self.max_batch_size

    def checks(self) -> tuple[Check, ...]:
        return (
            *RunnerConfig.checks(self),
            (1 <= self.max_batch_size <= 1024, "max_batch_size must be in [1, 1024]"),
            (0 <= self.batch_timeout_s <= 60, "batch_timeout_s must be in [0, 60]"),
            (self.max_input_tokens >= 0, "max_input_tokens must be 0 (automatic) or more"),
            (self.max_new_tokens >= 0, "max_new_tokens must be 0 (automatic) or more"),
            (self.max_waiting >= 0, "max_waiting must be at least 0"),
        )
