"""A small real stepped engine: each sequence counts on from the last token that it is given.

No model, no torch. It keeps a waiting queue and a running set, refuses what an engine refuses, ends
what has run out of time, and can be told to be slow or to break, so that everything around an
engine can be driven with it. Its time can be simulated: then it passes by steps alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from native_engine.errors import (
    DuplicateRequest,
    EngineError,
    InvalidTokenId,
    QueueFull,
    RequestTooLong,
)
from native_engine.types import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    PromptLogprob,
    SampledToken,
    SequenceOutput,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    max_num_seqs: int = 4
    max_waiting: int = 8
    max_model_len: int = 100_000
    max_input_tokens: int = 0
    max_new_tokens: int = 0
    vocab_size: int = 1_000
    step_s: float = 0.0  # how long a forward pass takes
    is_simulated: bool = False  # it takes so long by the engine's clock, and nobody sleeps
    retry_after_s: float | None = None  # what it says to those it has no room for
    journal: str = (
        ""  # the path of a file that gets a line for each request added: see `journal_at`
    )
    starts_from_seed: bool = False  # added to the last token of the prompt
    breaks_on_token: int = -1  # the engine cannot go on once it draws this token
    errors_on_token: int = -1  # only the sequence that draws this token ends with an error


@dataclass(slots=True)
class _Sequence:
    request: EngineRequest
    last_token: int
    deadline_s: float
    num_generated: int = 0

    @property
    def is_first(self) -> bool:
        """Whether nothing was told of it yet."""
        return self.num_generated == len(self.request.output_token_ids)


class CountingEngine:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._simulated_s = 0.0
        self._waiting: dict[str, _Sequence] = {}
        self._running: dict[str, _Sequence] = {}
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._seen: set[tuple[str, tuple[int, ...]]] = set()  # salt and prompt

    @property
    def info(self) -> EngineInfo:
        options = self._options
        return EngineInfo(
            model_id="counting",
            max_model_len=options.max_model_len,
            max_input_tokens=options.max_input_tokens,
            max_new_tokens=options.max_new_tokens,
            vocab_size=options.vocab_size,
            max_num_seqs=options.max_num_seqs,
            max_waiting=options.max_waiting,
            num_blocks=0,
            block_size=0,
            dtype="int",
            device="cpu",
            description="counts on from the last token of the prompt",
            deterministic=True,
        )

    def idle_s(self) -> float:
        return 0.0 if self._waiting or self._running else math.inf

    def add(self, request: EngineRequest) -> None:
        if request.request_id in self._waiting or request.request_id in self._running:
            raise DuplicateRequest(f"request {request.request_id} is queued or running")
        if not request.prompt_token_ids:
            raise EngineError("the prompt is empty")
        if len(request.prompt_token_ids) >= self._options.max_model_len:
            raise RequestTooLong(f"{len(request.prompt_token_ids)} tokens do not fit")
        if not all(0 <= token < self._options.vocab_size for token in request.prompt_token_ids):
            raise InvalidTokenId(f"token ids go from 0 to {self._options.vocab_size - 1}")
        if len(self._waiting) + len(self._running) >= (
            self._options.max_num_seqs + self._options.max_waiting
        ):
            raise QueueFull(
                f"{len(self._waiting)} requests are waiting", self._options.retry_after_s
            )
        if self._options.journal:
            with Path(self._options.journal).open("ab") as journal:
                journal.write(msgspec.json.encode(request) + b"\n")
        offset = request.sampling.seed if self._options.starts_from_seed else 0
        timeout_s = math.inf if request.timeout_s is None else request.timeout_s
        given = request.output_token_ids
        last_token = given[-1] if given else request.prompt_token_ids[-1] + offset
        self._waiting[request.request_id] = _Sequence(
            request, last_token, self._now_s() + timeout_s, num_generated=len(given)
        )

    def abort(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)
        self._running.pop(request_id, None)

    def step(self) -> list[SequenceOutput]:
        if self._options.is_simulated:
            self._simulated_s += self._options.step_s
        else:
            time.sleep(self._options.step_s)
        over = self._end_overdue()
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            request_id, sequence = next(iter(self._waiting.items()))
            self._running[request_id] = self._waiting.pop(request_id)
            if sequence.request.fork_of not in self._running:  # else it is its sibling's prompt
                self._prompt_tokens += len(sequence.request.prompt_token_ids)
        outputs = [self._advance(sequence) for sequence in self._running.values()]
        for output in outputs:
            if output.finish_reason is not None or output.error is not None:
                del self._running[output.request_id]
        return over + outputs

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generation_tokens,
        )

    def _now_s(self) -> float:
        return self._simulated_s if self._options.is_simulated else time.monotonic()

    def _end_overdue(self) -> list[SequenceOutput]:
        """End what has run out of time, wherever it is."""
        now_s = self._now_s()
        over = [
            request_id
            for request_id, sequence in (self._waiting | self._running).items()
            if sequence.deadline_s <= now_s
        ]
        for request_id in over:
            self.abort(request_id)
        return [
            SequenceOutput(request_id=request_id, finish_reason=FinishReason.DEADLINE)
            for request_id in over
        ]

    def _advance(self, sequence: _Sequence) -> SequenceOutput:
        request, sampling = sequence.request, sequence.request.sampling
        if not sampling.max_tokens:
            return SequenceOutput(
                request_id=request.request_id,
                finish_reason=FinishReason.LENGTH,
                prompt_logprobs=_prompt_logprobs(request),
                queue_s=0.0,
            )
        sequence.last_token = token_id = (sequence.last_token + 1) % self._options.vocab_size
        if token_id == self._options.breaks_on_token:
            raise RuntimeError(f"token {token_id} breaks this engine")
        if token_id == self._options.errors_on_token:
            return SequenceOutput(request_id=request.request_id, error=f"no token {token_id} here")
        is_first = sequence.is_first
        sequence.num_generated += 1
        self._generation_tokens += 1
        return SequenceOutput(
            request_id=request.request_id,
            token=SampledToken(
                token_id=token_id, logprob=None if sampling.num_logprobs is None else -0.5
            ),
            finish_reason=self._finish_reason(sequence, token_id),
            queue_s=0.0 if is_first else None,
            cached_tokens=self._cached_tokens(request) if is_first else None,
            prompt_logprobs=_prompt_logprobs(request) if is_first else None,
        )

    def _cached_tokens(self, request: EngineRequest) -> int:
        """All but one if the same prompt has been here under the same salt."""
        key = (request.cache_salt, request.prompt_token_ids)
        was_here = key in self._seen
        self._seen.add(key)
        return len(request.prompt_token_ids) - 1 if was_here else 0

    def _finish_reason(self, sequence: _Sequence, token_id: int) -> FinishReason | None:
        sampling = sequence.request.sampling
        length = len(sequence.request.prompt_token_ids) + sequence.num_generated
        if token_id in sampling.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.EOS
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP
        if sequence.num_generated == sampling.max_tokens or length == self._options.max_model_len:
            return FinishReason.LENGTH
        return None


def _prompt_logprobs(request: EngineRequest) -> tuple[PromptLogprob, ...] | None:
    """The token at position p has the logprob -p and the rank p; all are likelier than it."""
    num_logprobs = request.sampling.num_prompt_logprobs
    if num_logprobs is None:
        return None
    return tuple(
        PromptLogprob(
            token_id=token_id,
            logprob=-float(position),
            rank=position,
            top_logprobs=tuple((other, -0.25) for other in range(num_logprobs)),
        )
        for position, token_id in enumerate(request.prompt_token_ids[1:], 1)
    )


def open_engine(options: Mapping[str, object]) -> CountingEngine:
    return CountingEngine(Options(**options))  # type: ignore[arg-type]


def journal_at(path: Path) -> list[EngineRequest]:
    """The requests that an engine with this journal was given, in order."""
    lines = path.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=EngineRequest) for line in lines]
