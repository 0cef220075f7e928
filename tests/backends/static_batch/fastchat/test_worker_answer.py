from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    StreamInterrupted,
)
from backends.static_batch.fastchat.controller_protocol import (
    BadJson,
    Frame,
    FrameSplitter,
    UsageJson,
)
from backends.static_batch.fastchat.worker_answer import WorkerAnswer
from backends.text.stop import StopMatcher, StopStrings
from backends.types import FinishReason, Token


def frame(text: str, reason: str | None = None, *, tokens: int | None = None) -> Frame:
    usage = None if tokens is None else UsageJson(prompt_tokens=3, completion_tokens=tokens)
    return Frame(text=text, error_code=0, finish_reason=reason, usage=usage)


def answer(*stop: str, include_stop_str: bool = False, max_new_tokens: int = 16) -> WorkerAnswer:
    matcher = StopMatcher(StopStrings(stop), include_stop_str=include_stop_str)
    return WorkerAnswer(0, matcher, max_new_tokens=max_new_tokens)


def texts(answer: WorkerAnswer, *cumulative: str) -> list[str]:
    """What each frame lets out; the last is the end."""
    tokens = [answer.push(frame(text)) for text in cumulative]
    return [token.text if token else "" for token in (*tokens, answer.end())]


def tidied(text: str) -> str:
    """As transformers' decoders do it."""
    for mark in (" .", " ?", " !", " ,"):
        text = text.replace(mark, mark.strip())
    text = text.replace(" ' ", "'")
    for short in (" n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(short, short.strip())
    return text


def test_cumulative_text_becomes_pieces() -> None:
    assert texts(answer(), "Hel", "Hello", "Hello wor", "Hello world") == [
        "Hel", "lo", " wor", "ld", ""
    ]  # fmt: skip


def test_a_character_that_is_not_complete_waits() -> None:
    assert texts(answer(), "na\ufffd", "naï", "naïf \ufffd\ufffd", "naïf 字") == [
        "na", "ï", "f ", "字", ""
    ]  # fmt: skip


def test_a_character_that_never_completes_comes_at_the_end() -> None:
    assert texts(answer(), "a\ufffd") == ["a", "\ufffd"]
    assert texts(answer(), "\ufffd") == ["", "\ufffd"]


@pytest.mark.parametrize(
    ("before", "after"), [("it '", "it's"), ("do n", "don't"), ("we 'v", "we've"), ("Yes ", "Yes.")]
)
def test_spaces_that_a_decoder_takes_out_later_wait(before: str, after: str) -> None:
    assert "".join(texts(answer(), before, after)) == after
    assert "".join(texts(answer(), before, before + "x")) == before + "x"


@given(
    st.lists(
        st.sampled_from(["a", " b", ".", " .", " ,", "'", " '", "s", "ve", " n", "'t", " ", "é"]),
        max_size=12,
    )
)
def test_pieces_join_to_the_last_text_whatever_the_decoder_tidied(words: list[str]) -> None:
    reading = answer()
    said = text = ""
    for end in range(len(words) + 1):
        text = tidied("".join(words[:end]))
        try:
            token = reading.push(frame(text))
        except BackendProtocolError:  # two changes met, and no piece could have made it good
            assert not text.startswith(said)
            return
        said += token.text if token else ""
        assert text.startswith(said)
    last = reading.end()
    assert last is not None
    assert said + last.text == text


@pytest.mark.parametrize("text", ["Hel", "", "Help me", "hello there"])
def test_text_that_is_out_cannot_be_taken_back(text: str) -> None:
    reading = answer()
    reading.push(frame("Hello"))

    with pytest.raises(BackendProtocolError, match="changed text that was already sent on"):
        reading.push(frame(text))


@pytest.mark.parametrize(
    ("spelt", "reason"), [("stop", FinishReason.EOS), ("length", FinishReason.LENGTH)]
)
def test_the_last_frame_says_why_it_ended(spelt: str, reason: FinishReason) -> None:
    reading = answer()
    reading.push(frame("Hello"))

    assert reading.push(frame("Hello", spelt)) == Token(index=0, text="", finish_reason=reason)
    assert reading.reason is reason
    assert reading.end() is None


def test_a_worker_that_does_not_say_why_it_ended_was_full_if_it_gave_all_there_was() -> None:
    full, early = answer(max_new_tokens=4), answer(max_new_tokens=4)
    full.push(frame("abcd", tokens=4))
    early.push(frame("abc", tokens=3))

    full.end()
    early.end()

    assert (full.reason, early.reason) == (FinishReason.LENGTH, FinishReason.EOS)


def test_an_answer_may_be_empty_but_not_missing() -> None:
    empty = answer()
    empty.push(frame("", tokens=0))
    assert empty.end() == Token(index=0, text="", finish_reason=FinishReason.EOS)

    with pytest.raises(BackendProtocolError, match="without a word"):
        answer().end()


def test_a_stop_string_ends_it_at_its_first_place() -> None:
    """S-STOP-SPLIT: FastChat looks for the last one, and shows what comes before that."""
    reading = answer("END")

    tokens = [reading.push(frame(text)) for text in ("a E", "a EN", "a END b END")]

    assert [token and token.text for token in tokens] == ["a ", None, ""]
    assert reading.reason is FinishReason.STOP


def test_a_stop_string_may_stay() -> None:
    reading = answer("END", include_stop_str=True)

    token = reading.push(frame("a END b", "length"))

    assert token == Token(index=0, text="a END", finish_reason=FinishReason.STOP)


def test_what_might_have_become_a_stop_comes_with_the_end() -> None:
    reading = answer("END")
    reading.push(frame("a E"))

    assert reading.push(frame("a EN", "stop")) == Token(
        index=0, text="EN", finish_reason=FinishReason.EOS
    )


def test_time_that_is_over_lets_out_what_was_held_back() -> None:
    reading, silent = answer("END"), answer()
    reading.push(frame("ab EN"))

    assert reading.cut() == "EN"
    assert silent.cut() == ""
    assert silent.reason is FinishReason.DEADLINE


def test_tokens_are_as_the_worker_counts_or_estimated() -> None:
    counted, guessed, nothing = answer(), answer(), answer()
    counted.push(frame("abc", tokens=2))
    counted.push(frame("abc"))
    guessed.push(frame("x" * 9))

    assert (counted.prompt_tokens, counted.completion_tokens) == (3, 2)
    assert counted.estimated_tokens is None
    assert (guessed.completion_tokens, guessed.estimated_tokens) == (None, 3)
    assert (nothing.completion_tokens, nothing.estimated_tokens) == (None, None)


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (40001, BackendRejected, False),
        (40301, BackendRejected, False),
        (40302, BackendRejected, False),
        (40303, BackendRejected, False),
        (42901, BackendOverloaded, True),
        (42902, BackendOverloaded, True),
        (42903, BackendOverloaded, True),
        (50001, BackendUnavailable, True),
        (50002, BackendOverloaded, True),
        (50005, BackendUnavailable, True),
        (50006, BackendTimeout, True),
        (77777, BackendUnavailable, True),
    ],
)
def test_an_error_code_becomes_an_error_of_its_kind(
    code: int, kind: type[BackendError], retryable: bool
) -> None:
    with pytest.raises(kind, match=f"error {code}: no, no") as caught:
        answer().push(Frame(text="no, no", error_code=code))
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable


def test_a_prompt_too_long_names_the_prompt() -> None:
    with pytest.raises(BackendRejected) as caught:
        answer().push(Frame(text="too long", error_code=40303))
    assert caught.value.param == "prompt"


def test_an_aborted_answer_is_none() -> None:
    with pytest.raises(StreamInterrupted):
        answer().push(frame("x", "abort"))
    with pytest.raises(BackendProtocolError, match="finished with 'tired'"):
        answer().push(frame("x", "tired"))


@given(
    frames=st.lists(st.binary(max_size=9).map(lambda raw: raw.replace(b"\0", b"")), max_size=6),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_frames_are_the_same_however_the_bytes_are_cut(
    frames: list[bytes], cuts: list[int]
) -> None:
    sent = b"".join(frame + b"\0" for frame in frames)
    places = sorted({0, len(sent), *(min(cut, len(sent)) for cut in cuts)})
    splitter = FrameSplitter()

    chunks = [sent[start:end] for start, end in itertools.pairwise(places)]
    found = [frame for chunk in chunks for frame in splitter.push(chunk)]

    assert found == [frame for frame in frames if frame]
    assert not splitter.has_begun_a_frame


def test_a_frame_has_a_greatest_length() -> None:
    splitter = FrameSplitter(max_frame_bytes=4)
    assert splitter.push(b"abcd") == []
    assert splitter.push(b"\0ab") == [b"abcd"]
    assert splitter.has_begun_a_frame
    with pytest.raises(BadJson, match="more than 4 bytes"):
        splitter.push(b"cde")
