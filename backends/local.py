"""A backend over an engine process: prompts into token ids, sampled tokens back into events.

All that local engines have in common above token ids meets here; which engine runs in the process
it does not know. Long prompts are encoded in a thread, so that no stream waits for them.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Literal, TypeVar

from backends.answer import Answer, PromptWriter
from backends.base import BackendStatus, EncodedToken
from backends.beam_answer import BeamAnswer
from backends.client import EngineClient
from backends.errors import BackendRejected, DeadlineExceeded, PromptTooLong
from backends.messages import Output, max_total_tokens
from backends.sampling import check_token_ids, engine_sampling
from backends.text.choice import ChoiceDecoder
from backends.text.logprobs import prompt_tokens
from backends.text.prompt_encoder import PromptEncoder
from backends.text.stop import StopStrings
from backends.text.tokenizer import Tokenizer
from backends.types import (
    UNLIMITED_TOKENS,
    ChatPrompt,
    ChoiceSoFar,
    Event,
    GenerationRequest,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    child_seed,
)
from native_engine import types as engine

Sharing = Literal["tenant", "shared"]
"""Who may find a prompt's beginning in the prefix cache: its own tenant, or everybody."""

LONG_PROMPT_CHARS = 4096
"""Encoding more than this takes about 1 ms, a thread 0.1 ms."""

LONG_PROMPT_LOGPROBS = 500
"""More prompt tokens than this are told of in a thread: 2 ms of work, 50 with 20 alternatives."""

MAX_PROMPT_LOGPROBS = 200_000
"""Of one request, those of alternatives included: 26 MB here, a frame of 3 MB, and with it up to
0.5 s in which no other stream goes on."""

NOTHING = ChoiceSoFar()

Result = TypeVar("Result")


class LocalBackend:
    """Implements `Backend`, `Tokenizing` and `Resuming`. Owns its client and closes it."""

    def __init__(
        self,
        name: str,
        client: EngineClient,
        tokenizer: Tokenizer,
        *,
        now: Callable[[], datetime],
        sharing: Sharing = "tenant",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is the local time that chat templates may write."""
        self._name = name
        self._client = client
        self._tokenizer = tokenizer
        self._encoder = PromptEncoder(tokenizer, now=now)
        self._sharing: Sharing = sharing
        self._clock = clock
        self._serials = itertools.count()

    @property
    def name(self) -> str:
        return self._name

    async def status(self) -> BackendStatus:
        info, stats = self._client.engine, self._client.stats
        known = BackendStatus(
            state=self._client.state,
            detail=self._client.detail,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            kv_blocks_total=stats.num_blocks,
            kv_blocks_free=stats.num_free_blocks,
            prompt_tokens_total=stats.prompt_tokens_total,
            generation_tokens_total=stats.generation_tokens_total,
            prefix_cache_queries=stats.prefix_cache_queries,
            prefix_cache_hits=stats.prefix_cache_hits,
            num_draft_tokens=stats.num_draft_tokens,
            num_accepted_tokens=stats.num_accepted_tokens,
            batches=stats.batches,
        )
        if info is None:
            return known
        return replace(
            known,
            model_id=info.model_id,
            max_model_len=max_total_tokens(info),
            max_concurrent_requests=info.max_num_seqs + info.max_waiting,
            engine=info.description,
            deterministic=info.deterministic,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def count_tokens(self, prompts: tuple[Prompt, ...]) -> int:
        return sum(len(ids) for ids in await _encoded(self._encoder.ids, prompts))

    async def encode(self, prompt: Prompt) -> tuple[EncodedToken, ...]:
        (tokens,) = await _encoded(self._encoder.tokens, (prompt,))
        return tokens

    @property
    def vocabulary(self) -> str:
        return self._tokenizer.fingerprint

    def can_resume(self, request: GenerationRequest) -> bool:
        return request.beams is None and request.sampling.prompt_logprobs is None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        deadline_s = self._clock() + request.timeout_s
        info = await self._client.until_ready()
        prompts = await _encoded(self._encoder.ids, request.prompts)
        left_s = deadline_s - self._clock()
        if left_s <= 0.0:
            raise DeadlineExceeded("the request's time was over before the engine could take it")
        given = self._given(request)
        sequences = self._sequences(replace(request, timeout_s=left_s), prompts, given, info)
        if request.beams is not None:
            search = BeamAnswer(request, sequences[:: request.n], self._tokenizer)
            await search.search(self._run, lambda: deadline_s - self._clock())
            for event in search.events():
                yield event
            return
        answer = Answer(
            request,
            self._decoders(request, sequences, given),
            await self._prompt_writer(request, prompts),
            num_given_tokens=sum(map(len, given)),
        )
        wanted = [
            sequence
            for sequence in sequences
            if answer.awaits(sequence.request_id) and _has_work(sequence.sampling)
        ]
        async with aclosing(self._client.stream(wanted)) as batches:
            async for batch in batches:
                for output in batch:
                    if len(output.prompt_logprobs or ()) > LONG_PROMPT_LOGPROBS:
                        events = await asyncio.to_thread(answer.push, output)
                    else:
                        events = answer.push(output)
                    if not answer.awaits(output.request_id):
                        self._client.abort(output.request_id)
                    for event in events:
                        yield event
        yield answer.finished(sum(len(ids) for ids in prompts))

    async def _run(self, sequences: Sequence[engine.EngineRequest]) -> dict[str, Output]:
        """The last output of each, by its id, once all have ended."""
        outputs: dict[str, Output] = {}
        async with aclosing(self._client.stream(sequences)) as batches:
            async for batch in batches:
                outputs.update((output.request_id, output) for output in batch)
        return outputs

    def _given(self, request: GenerationRequest) -> list[tuple[int, ...]]:
        """What has been drawn of each choice elsewhere: its very tokens if their ids mean the same
        here, or another spelling of its text.
        """
        resume = request.resume
        if resume is None:
            return [()] * request.num_choices
        is_ours = resume.vocabulary == self.vocabulary
        return [
            one.token_ids
            if is_ours and one.token_ids is not None
            else tuple(
                self._tokenizer.encode(one.text, add_special_tokens=False, parse_special=False)
            )
            for one in resume.choices
        ]

    def _sequences(
        self,
        request: GenerationRequest,
        prompts: Sequence[tuple[int, ...]],
        given: Sequence[tuple[int, ...]],
        info: engine.EngineInfo,
    ) -> list[engine.EngineRequest]:
        """One sequence per choice, those after a prompt's first forked from that. Its id is new
        even if the request has been here before.

        Raises:
            BackendRejected: they can never run, however long they wait.
        """
        check_token_ids(request.sampling, info.vocab_size)
        _check_prompt_logprobs(request.sampling, prompts)
        most = info.max_num_seqs + info.max_waiting
        num_at_once = len(prompts) * (request.beams.width if request.beams else request.n)
        if num_at_once > most:
            raise BackendRejected(
                f"{num_at_once} choices were asked for, and at most {most} fit; ask for "
                "fewer, or send several requests",
                param="n",
            )
        stem = f"{request.request_id}-{next(self._serials)}"
        salt = cache_salt(request, self._sharing)
        sampling = engine_sampling(request.sampling, self._tokenizer)
        return [
            engine.EngineRequest(
                request_id=f"{stem}-{index}",
                prompt_token_ids=prompts[index // request.n],
                sampling=replace(
                    sampling,
                    max_tokens=self._max_tokens(request, len(prompts[index // request.n]), info),
                    seed=child_seed(sampling.seed, index)
                    if request.num_choices > 1
                    else sampling.seed,
                    num_prompt_logprobs=None if index % request.n else sampling.num_prompt_logprobs,
                ),
                cache_salt=salt,
                fork_of=f"{stem}-{index - index % request.n}"
                if index % request.n and request.resume is None
                else None,
                output_token_ids=given[index],
                tenant=request.tenant,
                weight=request.weight,
                priority=request.priority,
                timeout_s=None if request.timeout_s == math.inf else request.timeout_s,
            )
            for index in range(request.num_choices)
        ]

    def _max_tokens(
        self, request: GenerationRequest, prompt_tokens: int, info: engine.EngineInfo
    ) -> int:
        """How many tokens the engine may draw.

        Raises:
            PromptTooLong: the prompt does not fit, or not with them.
            BackendRejected: they are more than the engine draws for one answer.
        """
        most = max_total_tokens(info)
        room = most - prompt_tokens
        may_clamp = request.clamp_max_tokens or request.max_tokens == UNLIMITED_TOKENS
        if room < 1 or (request.max_tokens > room and not may_clamp):
            raise PromptTooLong(
                prompt_tokens=prompt_tokens,
                max_tokens=request.max_tokens if room > 0 else 0,
                max_total_tokens=most,
            )
        if info.max_input_tokens and prompt_tokens > info.max_input_tokens:
            raise PromptTooLong(
                prompt_tokens=prompt_tokens, max_tokens=0, max_total_tokens=info.max_input_tokens
            )
        longest = min(room, info.max_new_tokens or room)
        if min(request.max_tokens, room) > longest and request.max_tokens != UNLIMITED_TOKENS:
            raise BackendRejected(
                f"{request.max_tokens} tokens were asked for, and backend {self._name} draws at "
                f"most {longest} for one answer; ask for fewer",
                param="max_tokens",
            )
        return min(request.max_tokens, longest)

    async def _prompt_writer(
        self, request: GenerationRequest, prompts: Sequence[tuple[int, ...]]
    ) -> PromptWriter | None:
        """What makes events of the prompts' log-probabilities, if they are asked for."""
        if request.sampling.prompt_logprobs is None:
            return None
        starts = await _encoded(self._encoder.starts, request.prompts)
        return lambda prompt, logprobs: prompt_tokens(
            self._tokenizer, prompts[prompt], starts[prompt], logprobs
        )

    def _decoders(
        self,
        request: GenerationRequest,
        sequences: Sequence[engine.EngineRequest],
        given: Sequence[tuple[int, ...]],
    ) -> dict[str, ChoiceDecoder]:
        """Of the choices that have not ended, by the id of their sequence."""
        stops = StopStrings(request.stop)
        so_far = request.resume.choices if request.resume else (NOTHING,) * len(sequences)
        decoders: dict[str, ChoiceDecoder] = {}
        for index, sequence in enumerate(sequences):
            if so_far[index].finish_reason is not None:
                continue
            decoder = decoders[sequence.request_id] = ChoiceDecoder(
                self._tokenizer,
                index=index,
                stops=stops,
                include_stop_str=request.include_stop_str,
                min_tokens=request.sampling.min_tokens,
            )
            decoder.resume(given[index], so_far[index].text)
        return decoders


def cache_salt(request: GenerationRequest, sharing: Sharing) -> str:
    """What the engine keeps apart. A client's own salt divides a tenant, and never joins two."""
    tenant = request.tenant if sharing == "tenant" else ""
    return f"{len(tenant)}:{tenant}{request.cache_salt}"  # the length keeps the two apart


def _check_prompt_logprobs(sampling: SamplingParams, prompts: Sequence[tuple[int, ...]]) -> None:
    """Raises BackendRejected."""
    if sampling.prompt_logprobs is None:
        return
    num_tokens = sum(len(ids) for ids in prompts)
    if num_tokens * (sampling.prompt_logprobs + 1) > MAX_PROMPT_LOGPROBS:
        raise BackendRejected(
            f"log-probabilities of {num_tokens} prompt tokens and {sampling.prompt_logprobs} "
            f"alternatives to each are more than the {MAX_PROMPT_LOGPROBS} that one request may "
            "ask for; ask for fewer alternatives, or send several requests",
            param="prompt_logprobs",
        )


def _has_work(sampling: engine.SamplingParams) -> bool:
    """Whether there is anything to compute: not for a prompt that is echoed and no more."""
    return sampling.max_tokens > 0 or sampling.num_prompt_logprobs is not None


async def _encoded(encode: Callable[[Prompt], Result], prompts: Sequence[Prompt]) -> list[Result]:
    """`encode` of each prompt, in a thread if together they are long."""

    def encode_all() -> list[Result]:
        return [encode(prompt) for prompt in prompts]

    if sum(_num_chars(prompt) for prompt in prompts) <= LONG_PROMPT_CHARS:
        return encode_all()
    return await asyncio.to_thread(encode_all)


def _num_chars(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt():
            return sum(len(message.content) for message in prompt.messages)
        case TextPrompt():
            return len(prompt.text)
        case TokenPrompt():
            return 0  # encoded already
