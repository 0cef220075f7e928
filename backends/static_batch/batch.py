"""One batch: rows padded on the left to one width, side by side in one contiguous piece of KV.

    row 0   . . . . p p p | a a a a
    row 1   p p p p p p p | a a
    row 2   . . p p p p p | a a a a a a

Every row owns as many blocks as the longest prompt and the longest answer could ever need, in one
run, whatever it asks for. Padding (`.`) comes first, is computed like everything else, and is seen
by nobody; it ends with a block, so that the prompt (`p`) begins with one. All rows take a step at a
time until the last has ended. Those that ended before are computed all the same, for nothing. That
is the waste of static batches, and this engine is here to be honest about it.

What a row gets does not depend on its neighbours or its padding: positions count from the prompt's
first token, and the noise depends on seed and position.

Knows no queue, no time, and nothing of how tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence as Values

from native_engine.sequence import Sequence, SequenceStatus
from native_engine.types import SamplingParams, ScheduledSequence

PADDING_TOKEN = 0
_UNSAMPLED = SamplingParams(max_tokens=0, temperature=0.0)


class Row:
    """One sequence of a batch, and where it lies."""

    def __init__(self, sequence: Sequence, *, region: range, width: int, block_size: int) -> None:
        """region: the blocks it owns; width: of the batch's prompts, in tokens."""
        self.sequence = sequence
        self.num_padding = width - sequence.num_prompt_tokens
        first = -(-self.num_padding // block_size)
        self._padding_table = region[:first]
        self._table = region[first:]
        self._last_column = len(self._table) * block_size - 1
        self._num_columns = 0  # so many tokens of its own are computed, those for nothing included

    @property
    def is_live(self) -> bool:
        return self.sequence.status is SequenceStatus.RUNNING

    def padding(self) -> ScheduledSequence:
        """The share that is computed before its prompt. Only if there is padding."""
        return ScheduledSequence(
            request_id=f"{self.sequence.request_id} padding",
            token_ids=[PADDING_TOKEN] * self.num_padding,
            start=0,
            block_table=self._padding_table,
            sampling=_UNSAMPLED,
            sample=False,
        )

    def share(self) -> ScheduledSequence:
        """Its prompt at first, with what came of its answer, then one token: its last, or none that
        matters once it has ended. A row that came with an answer may end at the end of its region,
        and the others go on: then its last column is computed again and again.
        """
        sequence, start = self.sequence, min(self._num_columns, self._last_column)
        token_ids = sequence.token_ids[start:] if self.is_live else [PADDING_TOKEN]
        self._num_columns += len(token_ids)
        return ScheduledSequence(
            request_id=sequence.request_id,
            token_ids=token_ids,
            start=start,
            block_table=self._table,
            sampling=sequence.sampling if self.is_live else _UNSAMPLED,
            sample=self.is_live,
            history=sequence.history if self.is_live else None,
        )


class Batch:
    """Rows that begin together and are computed until the last has ended."""

    def __init__(self, sequences: Values[Sequence], *, region_blocks: int, block_size: int) -> None:
        """region_blocks: what is reserved for each row."""
        width = max(sequence.num_prompt_tokens for sequence in sequences)
        self.rows = tuple(
            Row(
                sequence,
                region=range(index * region_blocks, (index + 1) * region_blocks),
                width=width,
                block_size=block_size,
            )
            for index, sequence in enumerate(sequences)
        )
        self.is_prefilled = False

    @property
    def is_over(self) -> bool:
        return not any(row.is_live for row in self.rows)

    def shares(self) -> list[ScheduledSequence]:
        """Of the next step: one of each row, in order; before them, in the first, the padding."""
        padding = (
            [] if self.is_prefilled else [row.padding() for row in self.rows if row.num_padding]
        )
        self.is_prefilled = True
        return padding + [row.share() for row in self.rows]
