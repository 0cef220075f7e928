from __future__ import annotations

import itertools
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backends import local
from backends.base import Backend, BackendState, Tokenizing
from backends.client import EngineClient
from backends.errors import (
    BackendOverloaded,
    BackendRejected,
    DeadlineExceeded,
    PromptTooLong,
    StreamInterrupted,
)
from backends.local import (
    LONG_PROMPT_CHARS,
    LONG_PROMPT_LOGPROBS,
    LocalBackend,
    Sharing,
    cache_salt,
)
from backends.text.logprobs import prompt_tokens
from backends.types import (
    UNLIMITED_TOKENS,
    ChatPrompt,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Message,
    Prompt,
    PromptLogprobs,
    PromptToken,
    SamplingParams,
    TextPrompt,
    Token,
    TokenPrompt,
    Usage,
    child_seed,
)
from tests.backends.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_tokenizer
from tests.backends.conftest import CountingProcess, EngineProcesses
from tests.backends.counting_engine import journal_at
from tests.backends.waiting import until
from tests.clock import FakeClock

GREEDY = SamplingParams(temperature=0.0)


class Reciter:
    """A local backend over an engine that counts, which makes it recite the alphabet."""

    def __init__(self, engines: EngineProcesses) -> None:
        self._engines = engines
        self._opened: list[LocalBackend] = []
        self.clock = FakeClock()
        self.template_threads: list[str] = []
        self.template_takes_s = 0.0

    def open(self, **options: object) -> LocalBackend:
        return self.open_on(self.start(**options))

    def start(self, **options: object) -> CountingProcess:
        return self._engines.start(vocab_size=VOCAB_SIZE, **options)

    def open_on(self, process: CountingProcess, *, sharing: Sharing = "tenant") -> LocalBackend:
        client = EngineClient(process.socket_path)
        backend = LocalBackend(
            "reciter",
            client,
            byte_tokenizer(),
            now=self._now,
            sharing=sharing,
            clock=self.clock,
        )
        self._opened.append(backend)
        return backend

    async def aclose(self) -> None:
        for backend in self._opened:
            await backend.aclose()

    def _now(self) -> datetime:
        self.clock.advance(self.template_takes_s)
        self.template_threads.append(threading.current_thread().name)
        return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def reciter(engines: EngineProcesses) -> AsyncIterator[Reciter]:
    reciter = Reciter(engines)
    yield reciter
    await reciter.aclose()


def request(
    *prompts: str | Prompt,
    max_tokens: int = UNLIMITED_TOKENS,
    clamp_max_tokens: bool = True,
    n: int = 1,
    stop: tuple[str, ...] = (),
    include_stop_str: bool = False,
    sampling: SamplingParams = GREEDY,
    timeout_s: float = math.inf,
) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        model="reciter",
        prompts=tuple(TextPrompt(text=p) if isinstance(p, str) else p for p in prompts),
        sampling=sampling,
        max_tokens=max_tokens,
        clamp_max_tokens=clamp_max_tokens,
        n=n,
        stop=stop,
        include_stop_str=include_stop_str,
        timeout_s=timeout_s,
    )


async def run(backend: Backend, request: GenerationRequest) -> tuple[list[Token], Finished]:
    async with aclosing(backend.generate(request)) as stream:
        events: list[Event] = [event async for event in stream]
    *tokens, finished = events
    assert isinstance(finished, Finished)
    return [token for token in tokens if isinstance(token, Token)], finished


async def read(stream: AsyncGenerator[Event, None]) -> None:
    async for _ in stream:
        pass


def text_of(tokens: list[Token], index: int = 0) -> str:
    return "".join(token.text for token in tokens if token.index == index)


async def until_idle(backend: LocalBackend) -> None:
    client = backend._client
    await until(lambda: client.stats.num_running == client.stats.num_waiting == 0)


async def test_answers_in_text_and_counts_tokens_exactly(reciter: Reciter) -> None:
    tokens, finished = await run(reciter.open(), request("xyza", max_tokens=5))

    assert [token.text for token in tokens] == ["b", "c", "d", "e", "f"]
    assert finished.reasons == (FinishReason.LENGTH,)
    assert finished.usage == Usage(prompt_tokens=4, completion_tokens=5)


async def test_counts_the_token_that_ends_the_answer_but_does_not_show_it(
    reciter: Reciter,
) -> None:
    tokens, finished = await run(reciter.open(), request("w"))

    assert text_of(tokens) == "xyz"
    assert (tokens[-1].token_id, tokens[-1].special) == (EOS_ID, True)
    assert finished.reasons == (FinishReason.EOS,)
    assert finished.usage.completion_tokens == 4


async def test_goes_past_the_end_of_the_answer_when_told(reciter: Reciter) -> None:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)

    tokens, finished = await run(reciter.open(), request("w", max_tokens=6, sampling=sampling))

    assert text_of(tokens) == "xyz|}"
    assert finished.reasons == (FinishReason.LENGTH,)


@pytest.mark.parametrize(("include", "text"), [(False, "bcde"), (True, "bcdefgh")])
async def test_a_stop_string_ends_the_answer_and_the_engines_work_on_it(
    reciter: Reciter, include: bool, text: str
) -> None:
    backend = reciter.open(step_s=0.001)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)

    tokens, finished = await run(
        backend, request("a", stop=("fgh",), include_stop_str=include, sampling=sampling)
    )

    assert text_of(tokens) == text
    assert finished.reasons == (FinishReason.STOP,)
    assert finished.usage.completion_tokens == 7
    await until_idle(backend)


async def test_drops_and_does_not_count_what_was_drawn_behind_a_stop_string(
    reciter: Reciter,
) -> None:
    backend = reciter.open()
    async with aclosing(backend.generate(request("a", max_tokens=20, stop=("ef",)))) as stream:
        events = [await anext(stream)]
        await until(lambda: backend._client.num_pending == 0)  # all 20 have come meanwhile

        events += [event async for event in stream]

    assert "".join(event.text for event in events if isinstance(event, Token)) == "bcd"
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.completion_tokens == 5


async def test_runs_every_child_of_every_prompt(reciter: Reciter) -> None:
    tokens, finished = await run(reciter.open(), request("a", "mm", max_tokens=3, n=2))

    assert [text_of(tokens, index) for index in range(4)] == ["bcd", "bcd", "nop", "nop"]
    assert finished.reasons == (FinishReason.LENGTH,) * 4
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=12)


async def test_children_of_one_prompt_share_it(reciter: Reciter) -> None:
    """All but the first of each prompt are forked, so the engine counts each prompt once."""
    backend = reciter.open(max_num_seqs=6)

    await run(backend, request("a", "mm", max_tokens=3, n=3))

    assert (await backend.status()).prompt_tokens_total == 3


async def test_a_choice_that_stops_early_leaves_the_others(reciter: Reciter) -> None:
    backend = reciter.open(step_s=0.001)

    tokens, finished = await run(backend, request("a", "m", max_tokens=10, stop=("d",)))

    assert [text_of(tokens, index) for index in range(2)] == ["bc", "nopqrstuvw"]
    assert finished.reasons == (FinishReason.STOP, FinishReason.LENGTH)
    assert finished.usage.completion_tokens == 13


async def test_closing_aborts_every_choice(reciter: Reciter) -> None:
    """S-ABORT-N."""
    backend = reciter.open(step_s=0.001)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for _ in range(20):
        async with aclosing(backend.generate(request("a", n=4, sampling=sampling))) as stream:
            await anext(stream)

    await until_idle(backend)


async def test_a_request_tried_again_gets_nothing_of_its_first_try(reciter: Reciter) -> None:
    """Outputs of the first try can still be on their way when the second begins."""
    backend = reciter.open()
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for _ in range(50):
        async with aclosing(backend.generate(request("a", sampling=sampling))) as stream:
            await anext(stream)

        tokens, _ = await run(backend, request("a", max_tokens=5))

        assert text_of(tokens) == "bcdef"


async def test_encodes_many_short_prompts_outside_the_loop(reciter: Reciter) -> None:
    """E-LONG-PROMPT-BLOCKS-LOOP."""
    backend = reciter.open()
    reciter.template_threads.clear()
    prompt = ChatPrompt(messages=(Message(role="user", content="x" * 100),))

    await backend.count_tokens((prompt,) * 50)

    assert "MainThread" not in reciter.template_threads


async def test_reports_logprobs_when_asked(reciter: Reciter) -> None:
    sampling = SamplingParams(temperature=0.0, logprobs=True)

    tokens, _ = await run(reciter.open(), request("a", max_tokens=1, sampling=sampling))

    assert tokens[0].logprob is not None
    assert (tokens[0].logprob.raw, tokens[0].logprob.logprob) == (b"b", -0.5)


async def events_of(backend: Backend, request: GenerationRequest) -> list[Event]:
    async with aclosing(backend.generate(request)) as stream:
        return [event async for event in stream]


async def test_tells_the_log_probabilities_of_every_prompt_once(reciter: Reciter) -> None:
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=1)

    events = await events_of(
        reciter.open(), request("aé", "m", max_tokens=1, n=2, sampling=sampling)
    )

    first, second = [event for event in events if isinstance(event, PromptLogprobs)]
    assert (first.prompt, second.prompt) == (0, 1)
    assert [(one.raw, one.start, one.logprob, one.rank) for one in first.tokens] == [
        (b"a", 0, None, None),
        ("é".encode()[:1], 1, -1.0, 1),
        ("é".encode()[1:], 1, -2.0, 2),
    ]
    assert [len(one.top_logprobs) for one in first.tokens] == [0, 1, 1]
    assert [one.text for one in second.tokens] == ["m"]
    for prompt in (0, 1):
        shown = [
            isinstance(event, PromptLogprobs)
            for event in events
            if (isinstance(event, PromptLogprobs) and event.prompt == prompt)
            or (isinstance(event, Token) and event.index // 2 == prompt)
        ]
        assert shown == [True, False, False]


async def test_a_prompt_can_be_scored_without_an_answer(reciter: Reciter) -> None:
    """I-MAX-TOKENS-ZERO: one sequence, whatever the number of choices."""
    backend = reciter.open(max_num_seqs=1, max_waiting=1)
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=0)

    prompt, finished = await events_of(
        backend, request("abc", max_tokens=0, n=2, sampling=sampling)
    )

    assert isinstance(prompt, PromptLogprobs)
    assert [one.logprob for one in prompt.tokens] == [None, -1.0, -2.0]
    assert isinstance(finished, Finished)
    assert finished.reasons == (FinishReason.LENGTH, FinishReason.LENGTH)
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=0)
    assert (await backend.status()).generation_tokens_total == 0


async def test_a_prompt_of_which_nothing_is_asked_computes_nothing(reciter: Reciter) -> None:
    backend = reciter.open()

    (finished,) = await events_of(backend, request("abc", max_tokens=0))

    assert isinstance(finished, Finished)
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=0)
    await run(backend, request("w", max_tokens=1))
    assert (await backend.status()).prompt_tokens_total == 1


async def test_long_prompts_are_told_outside_the_loop(
    reciter: Reciter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-LONG-PROMPT-BLOCKS-LOOP."""
    threads: list[str] = []
    write = prompt_tokens

    def watched(*arguments: Any) -> tuple[PromptToken, ...]:
        threads.append(threading.current_thread().name)
        return write(*arguments)

    monkeypatch.setattr(local, "prompt_tokens", watched)
    backend = reciter.open()
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=0)
    for length in (5, LONG_PROMPT_LOGPROBS + 2):
        await events_of(backend, request("a" * length, max_tokens=0, sampling=sampling))

    assert threads[0] == "MainThread"
    assert threads[1] != "MainThread"


async def test_refuses_more_log_probabilities_than_one_request_may_ask_for(
    reciter: Reciter,
) -> None:
    """I-FANOUT."""
    backend = reciter.open()
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=20)
    prompts = [TokenPrompt(token_ids=(97,) * 5_000)] * 2

    with pytest.raises(BackendRejected, match="more than the 200000") as caught:
        await events_of(backend, request(*prompts, max_tokens=0, sampling=sampling))

    assert caught.value.param == "prompt_logprobs"
    few = replace(sampling, prompt_logprobs=0)
    assert len(await events_of(backend, request(*prompts, max_tokens=0, sampling=few))) == 3


async def test_cuts_max_tokens_to_the_context(reciter: Reciter) -> None:
    tokens, finished = await run(reciter.open(max_model_len=10), request("abc", max_tokens=100))

    assert text_of(tokens) == "defghij"
    assert finished.reasons == (FinishReason.LENGTH,)


async def test_refuses_what_does_not_fit_the_context_when_it_may_not_cut(reciter: Reciter) -> None:
    backend = reciter.open(max_model_len=10)

    with pytest.raises(PromptTooLong) as caught:
        await run(backend, request("abc", max_tokens=8, clamp_max_tokens=False))

    error = caught.value
    assert (error.prompt_tokens, error.max_tokens, error.max_total_tokens) == (3, 8, 10)
    tokens, _ = await run(backend, request("abc", clamp_max_tokens=False))
    assert text_of(tokens) == "defghij", "no max_tokens at all means what fits"


async def test_refuses_a_prompt_that_fills_the_context(reciter: Reciter) -> None:
    with pytest.raises(PromptTooLong) as caught:
        await run(reciter.open(max_model_len=10), request("abcdefghij", max_tokens=1))

    assert (caught.value.prompt_tokens, caught.value.max_tokens) == (10, 0)


async def test_refuses_a_prompt_longer_than_the_engine_takes(reciter: Reciter) -> None:
    backend = reciter.open(max_input_tokens=3)
    with pytest.raises(PromptTooLong) as caught:
        await run(backend, request("abcd", max_tokens=1))
    error = caught.value
    assert (error.prompt_tokens, error.max_tokens, error.max_total_tokens) == (4, 0, 3)
    tokens, _ = await run(backend, request("abc", max_tokens=1))
    assert text_of(tokens) == "d"


async def test_refuses_a_longer_answer_than_the_engine_gives(reciter: Reciter) -> None:
    """And does not cut it in silence: a policy can send it elsewhere."""
    backend = reciter.open(max_model_len=10, max_new_tokens=4)
    with pytest.raises(BackendRejected, match="backend reciter draws at most 4 for one") as caught:
        await run(backend, request("abc", max_tokens=5))
    assert caught.value.param == "max_tokens"
    tokens, _ = await run(backend, request("abc"))
    assert text_of(tokens) == "defg", "no max_tokens at all means what it gives"
    tokens, _ = await run(backend, request("abcdefgh", max_tokens=5))
    assert text_of(tokens) == "ij", "the context leaves less"


async def test_refuses_more_choices_than_can_ever_be_queued(reciter: Reciter) -> None:
    with pytest.raises(BackendRejected, match="at most 3 fit") as caught:
        await run(reciter.open(max_num_seqs=1, max_waiting=2), request("a", n=4))

    assert caught.value.param == "n"


async def test_names_the_prompt_when_a_token_id_is_unknown(reciter: Reciter) -> None:
    with pytest.raises(BackendRejected) as caught:
        await run(reciter.open(), request(TokenPrompt(token_ids=(1, 257))))

    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**31, 2**63])
@pytest.mark.parametrize("param", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
async def test_names_the_field_and_the_vocabulary_when_a_token_id_is_unknown(
    reciter: Reciter, param: str, token_id: int
) -> None:
    """I-STOP-IDS-OOV."""
    sampling = SamplingParams(
        temperature=0.0,
        min_tokens=5,
        stop_token_ids=(1, token_id if param == "stop_token_ids" else 2),
        allowed_token_ids=(1, token_id if param == "allowed_token_ids" else 2),
        logit_bias=((token_id if param == "logit_bias" else 2, 1.0),),
    )
    with pytest.raises(BackendRejected, match=f"{token_id} is out of range.* {VOCAB_SIZE} ") as got:
        await run(reciter.open(), request("abc", sampling=sampling))
    assert got.value.param == param


@pytest.mark.parametrize(
    ("min_tokens", "stop", "text"),
    [
        (0, "c", "b"),
        (1, "c", "b"),  # "c" is the second token
        (2, "c", "bcdefg"),
        (2, "cd", "b"),  # begun within the first two, complete after them
        (3, "cd", "bcdefg"),
        (6, "g", "bcdefg"),
    ],
)
async def test_stop_strings_wait_for_min_tokens(
    reciter: Reciter, min_tokens: int, stop: str, text: str
) -> None:
    """E-MIN-TOKENS: what is complete too early is text; the usage is exact."""
    sampling = SamplingParams(temperature=0.0, min_tokens=min_tokens)
    tokens, finished = await run(
        reciter.open(), request("a", max_tokens=6, stop=(stop,), sampling=sampling)
    )
    assert text_of(tokens) == text
    stopped = finished.reasons == (FinishReason.STOP,)
    assert stopped == (text == "b")
    assert finished.usage.completion_tokens == (len(text + stop) if stopped else 6)


async def test_gives_each_choice_a_seed_of_its_own(reciter: Reciter) -> None:
    """E-SEED: the same request gives the same answers, and the choices differ."""
    backend = reciter.open(starts_from_seed=True)
    sampling = SamplingParams(seed=5)

    tokens, _ = await run(backend, request("a", max_tokens=8, n=3, sampling=sampling))
    again, _ = await run(backend, request("a", max_tokens=8, n=3, sampling=sampling))
    alone, _ = await run(backend, request("a", max_tokens=8, sampling=sampling))

    answers = [[t.token_id for t in tokens if t.index == index] for index in range(3)]
    assert answers == [[t.token_id for t in again if t.index == index] for index in range(3)]
    assert len({tuple(answer) for answer in answers}) == 3
    assert text_of(alone) == "ghijklmn", "a choice alone has the client's own seed"


def test_child_seeds_are_64_bits_and_differ() -> None:
    seeds = {child_seed(seed, index) for seed in (0, 1, 2**64 - 1) for index in range(100)}

    assert len(seeds) == 300
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("num_chars", "in_loop"), [(LONG_PROMPT_CHARS, True), (LONG_PROMPT_CHARS + 1, False)]
)
async def test_encodes_a_long_prompt_outside_the_loop(
    reciter: Reciter, num_chars: int, in_loop: bool
) -> None:
    """E-LONG-PROMPT-BLOCKS-LOOP."""
    backend = reciter.open()
    reciter.template_threads.clear()  # of compiling it
    messages = (Message(role="user", content="x" * num_chars),)

    assert await backend.count_tokens((ChatPrompt(messages=messages),)) == num_chars + 4

    assert {name == "MainThread" for name in reciter.template_threads} == {in_loop}


async def test_counts_and_shows_the_tokens_of_a_prompt(reciter: Reciter) -> None:
    backend = reciter.open()
    assert isinstance(backend, Tokenizing)

    assert await backend.count_tokens((TextPrompt(text="abc"), TextPrompt(text="d"))) == 4
    assert [(t.token_id, t.text) for t in await backend.encode(TextPrompt(text="ab"))] == [
        (97, "a"),
        (98, "b"),
    ]


async def test_tells_what_it_last_heard_of_its_engine(reciter: Reciter) -> None:
    backend = reciter.open(max_num_seqs=3, max_waiting=4, max_model_len=50)
    assert (await backend.status()).state is BackendState.STARTING

    await run(backend, request("abc", max_tokens=5))

    status = await backend.status()
    assert status.state is BackendState.READY
    assert (status.model_id, status.max_model_len) == ("counting", 50)
    assert status.max_concurrent_requests == 7
    assert (status.prompt_tokens_total, status.generation_tokens_total) == (3, 5)
    assert status.deterministic


async def test_an_engine_that_dies_interrupts_the_answer(
    reciter: Reciter, engines: EngineProcesses
) -> None:
    process = engines.start(vocab_size=VOCAB_SIZE, step_s=0.001)
    backend = reciter.open_on(process)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    stream = backend.generate(request("a", sampling=sampling))
    await anext(stream)

    process.kill()

    with pytest.raises(StreamInterrupted):
        await read(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def cached_tokens(backend: Backend, asked: GenerationRequest) -> int:
    _, finished = await run(backend, asked)
    return finished.usage.cached_tokens


async def test_cached_tokens_count_once_per_prompt(reciter: Reciter) -> None:
    """Three children of two prompts; the first child of a cold prompt finds nothing."""
    backend = reciter.open()
    asked = request("wxyz", "abc", n=3, max_tokens=2)
    assert await cached_tokens(backend, asked) == 0
    assert await cached_tokens(backend, asked) == 3 + 2


async def test_tenants_and_salts_find_nothing_of_each_other(reciter: Reciter) -> None:
    backend = reciter.open()
    asked = request("wxyz", max_tokens=1)
    owners = [
        replace(asked, tenant=tenant, cache_salt=salt)
        for tenant, salt in itertools.product(["", "one", "two"], ["", "salt"])
    ]
    assert [await cached_tokens(backend, owner) for owner in owners] == [0] * 6
    assert [await cached_tokens(backend, owner) for owner in owners] == [3] * 6


async def test_sharing_joins_the_tenants_and_not_the_salts(reciter: Reciter) -> None:
    backend = reciter.open_on(reciter.start(), sharing="shared")
    one = replace(request("wxyz", max_tokens=1), tenant="one")
    assert await cached_tokens(backend, one) == 0
    assert await cached_tokens(backend, replace(one, tenant="two")) == 3
    assert await cached_tokens(backend, replace(one, cache_salt="salt")) == 0
    assert await cached_tokens(backend, replace(one, tenant="two", cache_salt="salt")) == 3


def test_no_client_can_spell_another_tenant_s_salt() -> None:
    """However tenant and salt run together."""
    asked = request("x")
    owners = [("a", "b"), ("ab", ""), ("", "ab"), ("", "1:ab"), ("1:a", "b"), ("1", ":ab")]
    salts = {cache_salt(replace(asked, tenant=t, cache_salt=s), "tenant") for t, s in owners}
    assert len(salts) == len(owners)


async def test_an_answer_whose_time_is_over_is_what_came_until_then(reciter: Reciter) -> None:
    """The text held back for a stop string that did not come is part of it."""
    backend = reciter.open(step_s=1.0, is_simulated=True)

    tokens, finished = await run(backend, request("a", stop=("de-",), timeout_s=4.5))

    assert [token.text for token in tokens] == ["b", "c", "", ""]
    assert all(token.finish_reason is None for token in tokens)
    assert finished.reasons == (FinishReason.DEADLINE,)
    assert finished.tails == ("de",)
    assert finished.usage == Usage(prompt_tokens=1, completion_tokens=4)
    await until_idle(backend)


@pytest.mark.parametrize(("prompts", "n"), [(("a",), 2), (("a", "m"), 1)])
async def test_choices_that_never_ran_end_empty_beside_others(
    reciter: Reciter, prompts: tuple[str, ...], n: int
) -> None:
    backend = reciter.open(step_s=1.0, is_simulated=True, max_num_seqs=1)

    tokens, finished = await run(backend, request(*prompts, n=n, timeout_s=2.5))

    assert [text_of(tokens, index) for index in range(2)] == ["bc", ""]
    assert finished.reasons == (FinishReason.DEADLINE,) * 2
    assert finished.usage.completion_tokens == 2


async def test_a_choice_that_ended_in_time_keeps_its_reason(reciter: Reciter) -> None:
    backend = reciter.open(step_s=1.0, is_simulated=True)

    tokens, finished = await run(backend, request("y", "a", timeout_s=5.5))

    assert [text_of(tokens, index) for index in range(2)] == ["z", "bcdef"]
    assert finished.reasons == (FinishReason.EOS, FinishReason.DEADLINE)


async def test_a_request_that_got_no_token_in_time_is_an_error(reciter: Reciter) -> None:
    backend = reciter.open(step_s=1.0, is_simulated=True)

    with pytest.raises(DeadlineExceeded) as caught:
        await run(backend, request("a", "m", n=2, timeout_s=0.5))

    assert not caught.value.retryable
    await until_idle(backend)


async def test_the_engine_gets_what_is_left_when_the_prompt_has_been_encoded(
    reciter: Reciter, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    backend = reciter.open(journal=str(journal))
    reciter.template_takes_s = 1.5
    prompt = ChatPrompt(messages=(Message(role="user", content="a"),))

    asked_s = reciter.clock()
    await run(backend, request(prompt, max_tokens=1, timeout_s=10.0))
    encoding_s = reciter.clock() - asked_s
    await run(backend, request(prompt, max_tokens=1))
    with pytest.raises(DeadlineExceeded):
        await run(backend, request(prompt, max_tokens=1, timeout_s=1.0))

    assert encoding_s >= 1.5
    assert [asked.timeout_s for asked in journal_at(journal)] == [10.0 - encoding_s, None]


async def test_the_engine_is_told_whose_a_sequence_is_and_of_which_class(
    reciter: Reciter, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    backend = reciter.open(journal=str(journal))
    asked = replace(request("a", n=2, max_tokens=1), tenant="t1", weight=2.5, priority=-1)

    await run(backend, asked)
    await run(backend, request("a", max_tokens=1))

    told = [(one.tenant, one.weight, one.priority) for one in journal_at(journal)]
    assert told == [("t1", 2.5, -1)] * 2 + [("", 1.0, 0)]


async def test_a_full_engine_says_when_to_come_back(reciter: Reciter) -> None:
    backend = reciter.open(max_num_seqs=1, max_waiting=0, step_s=0.001, retry_after_s=2.25)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    async with aclosing(backend.generate(request("a", sampling=sampling))) as running:
        await anext(running)

        with pytest.raises(BackendOverloaded) as caught:
            await run(backend, request("b"))

    assert caught.value.retry_after_s == 2.25
