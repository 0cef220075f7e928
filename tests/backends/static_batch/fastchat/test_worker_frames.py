from __future__ import annotations

import json
import math

import pytest

from backends.static_batch.fastchat.worker_frames import AnswerFrames
from backends.static_batch.fastchat.worker_protocol import Frame, read_generate_params
from backends.types import (
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    PromptToken,
    Token,
    TokenLogprob,
    Usage,
)


def frames_of(
    *events: Event, echoed: str = "", stream_interval: int = 2, logprobs: int | None = None
) -> list[Frame]:
    body = json.dumps({"prompt": "p", "logprobs": logprobs}).encode()
    answer = AnswerFrames(
        read_generate_params(body, draw_seed=lambda: 0),
        echoed=echoed,
        prompt_tokens=3,
        stream_interval=stream_interval,
    )
    return [frame for event in events for frame in answer.push(event)]


def tokens(*texts: str) -> list[Token]:
    return [Token(index=0, text=text) for text in texts]


def entry(text: str, logprob: float) -> TokenLogprob:
    return TokenLogprob(token_id=1, text=text, raw=text.encode(), logprob=logprob)


def finished(reason: FinishReason, completion_tokens: int, *tails: str) -> Finished:
    usage = Usage(prompt_tokens=3, completion_tokens=completion_tokens)
    return Finished(reasons=(reason,), usage=usage, tails=tails)


def seen(frames: list[Frame]) -> list[tuple[object, object]]:
    return [(frame["text"], frame["finish_reason"]) for frame in frames]


def test_each_text_is_the_whole_answer_so_far() -> None:
    frames = frames_of(*tokens("a", "b", "c", "d"), finished(FinishReason.LENGTH, 4))

    assert seen(frames) == [
        ("a", None),
        ("abc", None),
        ("abcd", None),
        ("abcd", "length"),
    ]


@pytest.mark.parametrize(("stream_interval", "num_frames"), [(1, 5), (2, 3), (4, 2), (100, 1)])
def test_a_frame_comes_with_the_first_token_and_then_every_interval(
    stream_interval: int, num_frames: int
) -> None:
    frames = frames_of(*tokens(*"abcde"), stream_interval=stream_interval)

    assert len(frames) == num_frames
    assert [frame["text"] for frame in frames] == [
        "abcde"[:n] for n in range(1, 6, stream_interval)
    ]


def test_an_end_with_nothing_new_is_one_frame() -> None:
    frames = frames_of(*tokens("a", "b", ""), finished(FinishReason.EOS, 3), stream_interval=1)

    assert seen(frames)[2:] == [("ab", None), ("ab", "stop")]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (FinishReason.EOS, "stop"),
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.DEADLINE, "length"),
    ],
)
def test_reasons_have_fastchats_two_names(reason: FinishReason, told: str) -> None:
    assert frames_of(*tokens("a"), finished(reason, 1))[-1]["finish_reason"] == told


def test_every_frame_counts_the_tokens_until_then() -> None:
    """engine.md 4.2: completion_tokens is a loop index, one too few."""
    frames = frames_of(*tokens("a", "b", "c"), finished(FinishReason.LENGTH, 3))

    assert [frame["usage"] for frame in frames] == [
        {"prompt_tokens": 3, "completion_tokens": n, "total_tokens": 3 + n} for n in (1, 3, 3)
    ]


def test_an_echo_stands_in_front_of_every_text() -> None:
    frames = frames_of(*tokens("c"), finished(FinishReason.LENGTH, 1), echoed="ab")

    assert [frame["text"] for frame in frames] == ["abc", "abc"]


def test_text_held_back_comes_with_the_end() -> None:
    frames = frames_of(*tokens("a", ""), finished(FinishReason.DEADLINE, 2, "b"))

    assert seen(frames) == [("a", None), ("ab", None), ("ab", "length")]


def test_log_probabilities_are_of_all_tokens_so_far_the_echoed_ones_in_front() -> None:
    prompt = PromptLogprobs(
        prompt=0,
        tokens=(
            PromptToken(token_id=1, text="ab", raw=b"ab", start=0, logprob=None, rank=None),
            PromptToken(
                token_id=2,
                text=" c",
                raw=b" c",
                start=2,
                logprob=-1.0,
                rank=2,
                top_logprobs=(entry(" d", -0.5),),
            ),
        ),
    )
    told = Token(
        index=0,
        text="e",
        logprob=entry("e", -math.inf),
        top_logprobs=(entry("x", -0.25), entry("x", -0.75)),
    )

    first, last = frames_of(
        prompt, told, finished(FinishReason.LENGTH, 1), echoed="ab c", logprobs=1
    )

    assert first["logprobs"] == last["logprobs"]
    assert last["logprobs"] == {
        "text_offset": [0, 2, 4],
        "token_logprobs": [None, -1.0, -9999.0],
        "tokens": ["ab", " c", "e"],
        "top_logprobs": [{}, {" d": -0.5}, {"x": -0.25}],
    }


def test_without_being_asked_there_are_no_log_probabilities() -> None:
    assert frames_of(*tokens("a"))[0]["logprobs"] is None
