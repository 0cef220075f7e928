from __future__ import annotations

import pytest

from backends.answer import Answer
from backends.errors import DeadlineExceeded
from backends.messages import Output
from backends.text.choice import ChoiceDecoder
from backends.text.logprobs import prompt_tokens
from backends.text.stop import StopStrings
from backends.types import (
    Event,
    FinishReason,
    GenerationRequest,
    PromptLogprobs,
    SamplingParams,
    Token,
    TokenPrompt,
)
from native_engine import types as engine
from tests.backends.byte_tokenizer import byte_tokenizer

PROMPTS = (b"pq", b"r")
LENGTH = engine.FinishReason.LENGTH


def answer(*, n: int, stop: tuple[str, ...] = (), asked: bool = True) -> Answer:
    """To two prompts; sequence "3" is choice 3."""
    tokenizer = byte_tokenizer()
    request = GenerationRequest(
        request_id="r",
        model="m",
        prompts=tuple(TokenPrompt(token_ids=tuple(prompt)) for prompt in PROMPTS),
        sampling=SamplingParams(prompt_logprobs=0 if asked else None),
        n=n,
        stop=stop,
    )
    decoders = {
        str(index): ChoiceDecoder(tokenizer, index=index, stops=StopStrings(stop))
        for index in range(request.num_choices)
    }
    write = None
    if asked:
        write = lambda prompt, logprobs: prompt_tokens(  # noqa: E731
            tokenizer, PROMPTS[prompt], range(len(PROMPTS[prompt])), logprobs
        )
    return Answer(request, decoders, write)


def drawn(index: int, letter: str, *, prompt: bytes | None = None, last: bool = False) -> Output:
    """What an engine says of a token, the first of a prompt's first choice with its prompt."""
    return Output(
        str(index),
        engine.SampledToken(token_id=ord(letter)),
        LENGTH if last else None,
        queue_s=0.5 + index,
        cached_tokens=10 + index,
        prompt_logprobs=None if prompt is None else scores(prompt),
    )


def scores(prompt: bytes) -> tuple[engine.PromptLogprob, ...]:
    return tuple(engine.PromptLogprob(token_id=one, logprob=-1.0, rank=2) for one in prompt[1:])


def shown(events: list[Event]) -> list[str]:
    return [
        f"{event.index}{event.text}" if isinstance(event, Token) else f"prompt {event.prompt}"
        for event in events
        if isinstance(event, Token | PromptLogprobs)
    ]


def test_a_prompt_comes_before_the_tokens_of_its_choices_whichever_is_the_faster() -> None:
    made = answer(n=2)
    events: list[Event] = []
    for output in (
        drawn(1, "a"),
        drawn(2, "b", prompt=PROMPTS[1]),
        drawn(3, "c"),
        drawn(1, "d", last=True),
        drawn(0, "e", prompt=PROMPTS[0]),
        drawn(0, "f"),
    ):
        events += made.push(output)
    assert shown(events) == ["prompt 1", "2b", "3c", "prompt 0", "1a", "1d", "0e", "0f"]


def test_counts_what_is_held_and_knows_whom_it_still_awaits() -> None:
    made = answer(n=2, stop=("x",))
    made.push(drawn(1, "x"))
    assert [made.awaits(str(index)) for index in range(4)] == [True, False, True, True]
    assert made.push(drawn(1, "y")) == ()
    made.push(drawn(0, "a", prompt=PROMPTS[0], last=True))
    made.push(drawn(2, "a", prompt=PROMPTS[1], last=True))
    made.push(drawn(3, "a", last=True))
    finished = made.finished(3)
    length = FinishReason.LENGTH
    assert finished.reasons == (length, FinishReason.STOP, length, length)
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (3, 4)
    assert finished.usage.cached_tokens == 10 + 12  # of the first choice of each prompt
    assert finished.queue_s == 1.5  # of what came first


def test_a_choice_may_end_without_a_token() -> None:
    made = answer(n=1)
    (event,) = made.push(Output("0", finish_reason=LENGTH, prompt_logprobs=scores(PROMPTS[0])))
    assert isinstance(event, PromptLogprobs)
    assert [(one.token_id, one.text, one.logprob, one.rank) for one in event.tokens] == [
        (ord("p"), "p", None, None),
        (ord("q"), "q", -1.0, 2),
    ]
    assert not made.awaits("0")
    assert made.finished(3).usage.completion_tokens == 0


def test_nothing_is_held_if_nothing_is_asked_of_the_prompt() -> None:
    made = answer(n=2, asked=False)
    assert shown([*made.push(drawn(1, "a")), *made.push(drawn(0, "b"))]) == ["1a", "0b"]


def test_an_answer_cut_before_its_prompt_was_told_is_none() -> None:
    """A sibling overtook the first choice, but its token may not come before the prompt."""
    made = answer(n=2)
    assert made.push(drawn(1, "a")) == ()
    for index in range(4):
        made.push(Output(str(index), finish_reason=engine.FinishReason.DEADLINE))
    with pytest.raises(DeadlineExceeded):
        made.finished(3)
