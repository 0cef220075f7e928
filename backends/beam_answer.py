"""The answer to a beam search: rounds of one token for each live beam, and the best in the end.

A round is a handful of plain requests of one token, with the likeliest tokens told: the prompt and
a beam go in, the candidates come out. The engine finds what it computed in the round before in the
prefix cache, all but the last block of each beam, and nobody else's requests wait longer for a
search than for any other. `docs/decisions/0012-beams-are-plain-requests.md` has what that costs.

Knows no processes: a round is run by whoever is given `run`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from backends.beam_search import BeamSearch
from backends.errors import DeadlineExceeded
from backends.messages import Output
from backends.text.choice import ChoiceDecoder
from backends.text.tokenizer import Tokenizer
from backends.types import Event, Finished, FinishReason, GenerationRequest, Usage
from native_engine import types as engine

Round = Callable[[Sequence[engine.EngineRequest]], Awaitable[dict[str, Output]]]
"""Runs sequences of one token, and gives the last output of each, by its id."""


class BeamAnswer:
    """All searches of one request, one for each prompt, in step with each other."""

    def __init__(
        self,
        request: GenerationRequest,
        sequences: Sequence[engine.EngineRequest],
        tokenizer: Tokenizer,
    ) -> None:
        """sequences: what the first choice of each prompt would be without beams."""
        if request.beams is None:
            raise ValueError("no beams are asked for")
        self._request = request
        self._tokenizer = tokenizer
        self._sequences = sequences
        self._searches = [
            BeamSearch(
                request.beams,
                max_tokens=sampling.max_tokens,
                min_tokens=request.sampling.min_tokens,
                eos_token_ids=() if sampling.ignore_eos else sampling.eos_token_ids,
                stop_token_ids=sampling.stop_token_ids,
            )
            for sampling in (sequence.sampling for sequence in sequences)
        ]
        self._queue_s: float | None = None
        self._cached_tokens = 0
        self._num_rounds = 0

    async def search(self, run: Round, left_s: Callable[[], float]) -> None:
        """Run rounds until all searches are over, or the time is.

        Raises:
            DeadlineExceeded: there is no token by then.
            BackendError: a round failed.
        """
        while any(search.live for search in self._searches):
            time_s = left_s()
            outputs = await run(list(self._round(time_s))) if time_s > 0.0 else {}
            if any(output.token is None for output in outputs.values()) or not outputs:
                break  # the time is over
            self._take(outputs)
        if not self._num_rounds:
            raise DeadlineExceeded("the request's time was over before its first token")

    def events(self) -> Iterator[Event]:
        """The choices of each prompt, best first; then the end."""
        beams = [beam for search in self._searches for beam in search.best(self._request.n)]
        tails: list[str] = []
        reasons: list[FinishReason] = []
        for index, beam in enumerate(beams):
            decoder = ChoiceDecoder(self._tokenizer, index=index)
            *tokens, last = [self._told(token) for token in beam.tokens]
            for token in tokens:
                yield decoder.push(token, None)
            yield decoder.push(last, beam.reason)
            tail, reason = ("", beam.reason) if beam.reason else decoder.cut()
            tails.append(tail)
            reasons.append(FinishReason(reason.value))
        yield Finished(
            reasons=tuple(reasons),
            usage=Usage(
                prompt_tokens=sum(len(one.prompt_token_ids) for one in self._sequences),
                completion_tokens=sum(len(beam.tokens) for beam in beams),
                cached_tokens=self._cached_tokens,
            ),
            tails=tuple(tails) if any(tails) else (),
            queue_s=self._queue_s or 0.0,
        )

    def _round(self, time_s: float) -> Iterator[engine.EngineRequest]:
        for number, (search, first) in enumerate(zip(self._searches, self._sequences, strict=True)):
            for index, beam in enumerate(search.live):
                yield replace(
                    first,
                    request_id=self._id(number, index),
                    prompt_token_ids=(
                        *first.prompt_token_ids,
                        *(token.token_id for token in beam.tokens),
                    ),
                    sampling=engine.SamplingParams(
                        max_tokens=1, temperature=0.0, num_logprobs=search.num_candidates
                    ),
                    timeout_s=None if first.timeout_s is None else time_s,
                )

    def _take(self, outputs: dict[str, Output]) -> None:
        for number, search in enumerate(self._searches):
            answers = [outputs[self._id(number, index)] for index in range(len(search.live))]
            if not self._num_rounds:
                self._cached_tokens += answers[0].cached_tokens or 0
                self._queue_s = self._queue_s or answers[0].queue_s
            search.advance([list(_candidates(answer)) for answer in answers])
        self._num_rounds += 1

    def _id(self, number: int, index: int) -> str:
        """Never used before: each round has its own."""
        return f"{self._sequences[number].request_id}-{self._num_rounds}-{index}"

    def _told(self, token: engine.SampledToken) -> engine.SampledToken:
        """With the log-probabilities that the client asked for."""
        sampling = self._request.sampling
        if not sampling.logprobs:
            return engine.SampledToken(token_id=token.token_id)
        return replace(token, top_logprobs=token.top_logprobs[: sampling.top_logprobs])


def _candidates(output: Output) -> Iterator[engine.SampledToken]:
    """The likeliest next tokens, each told as if it had been drawn."""
    if output.token is not None:
        likeliest = output.token.top_logprobs
        for token_id, logprob in likeliest:
            yield engine.SampledToken(token_id=token_id, logprob=logprob, top_logprobs=likeliest)
