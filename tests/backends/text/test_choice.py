from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from backends.text.choice import ChoiceDecoder
from backends.text.stop import StopStrings
from backends.text.tokenizer import Tokenizer
from backends.types import FinishReason, Token
from native_engine import types as engine
from native_engine.types import SampledToken
from tests.backends.text.test_detokenizer import byte_ids
from tests.backends.text.test_stop import first_match, must_hold
from tests.backends.text.tiny import IM_END, IM_START

LENGTH = engine.FinishReason.LENGTH
EOS = engine.FinishReason.EOS
TEXT = "I love Paris, the capital of France 漢字🌶!"


def events(
    tokenizer: Tokenizer,
    ids: list[int],
    *,
    stops: tuple[str, ...] = (),
    include_stop_str: bool = False,
    reason: engine.FinishReason = LENGTH,
) -> list[Token]:
    """The events up to the first finish reason; the engine ends with the last id."""
    choice = ChoiceDecoder(
        tokenizer, index=3, stops=StopStrings(stops), include_stop_str=include_stop_str
    )
    found: list[Token] = []
    for i, token_id in enumerate(ids):
        last = i == len(ids) - 1
        found.append(choice.push(SampledToken(token_id=token_id), reason if last else None))
        if found[-1].finish_reason is not None:
            break
    return found


def joined(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def spelt(tokenizer: Tokenizer, text: str) -> list[int]:
    """The text a byte at a time."""
    entries = byte_ids(tokenizer)
    return [entries[bytes([byte])] for byte in text.encode()]


def test_each_token_gives_one_event_in_order(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, TEXT)
    found = events(tokenizer, ids)
    assert [token.token_id for token in found] == ids
    assert {token.index for token in found} == {3}
    assert joined(found) == TEXT
    assert [token.finish_reason for token in found[:-1]] == [None] * (len(ids) - 1)
    assert found[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("include", [False, True])
def test_every_slice_of_the_text_stops_it_there(tokenizer: Tokenizer, include: bool) -> None:
    """S-STOP-SPLIT, E-STOP-MIDTOKEN: stops that begin, end or lie inside tokens."""
    ids = ids_of(tokenizer, TEXT)
    for start in range(len(TEXT)):
        for size in (1, 2, 3, 7, 20):
            stop = TEXT[start : start + size]
            found = events(tokenizer, ids, stops=(stop, "never"), include_stop_str=include)
            cut = TEXT.index(stop)
            assert joined(found) == TEXT[: cut + len(stop) if include else cut]
            assert found[-1].finish_reason is FinishReason.STOP


@given(
    text=st.text("aé漢🌶", max_size=10),
    stops=st.lists(st.text("aé漢🌶", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
)
def test_what_is_shown_is_the_whole_characters_less_what_may_become_a_stop(
    tokenizer: Tokenizer, text: str, stops: list[str], include: bool
) -> None:
    """Promise 10: one token a byte. Held against searches of all bytes so far at each of them."""
    raw, entry = text.encode() + b"!", byte_ids(tokenizer)
    ids = [entry[bytes([byte])] for byte in raw]
    found = events(tokenizer, ids, stops=tuple(stops), include_stop_str=include)
    for count in range(1, len(found) + 1):
        complete = raw[:count].decode("utf-8", "ignore")  # valid but for its end
        match = first_match(complete, tuple(stops))
        if match is not None:
            start, stop = match
            shown, reason = complete[: start + len(stop) * include], FinishReason.STOP
        elif count < len(ids):
            shown, reason = complete[: len(complete) - must_hold(complete, tuple(stops))], None
        else:
            shown, reason = complete, FinishReason.LENGTH
        assert (joined(found[:count]), found[count - 1].finish_reason) == (shown, reason)
    assert found[-1].finish_reason is not None


def test_a_stop_that_never_comes_changes_nothing_but_the_pace(tokenizer: Tokenizer) -> None:
    """S-STOP-SPLIT: what was held back comes with the last token."""
    stops = ("France 漢字🌶!!", "a very long stop that never appears")
    found = events(tokenizer, ids_of(tokenizer, TEXT), stops=stops)
    assert joined(found) == TEXT
    assert found[-1].text == "France 漢字🌶!"
    assert found[-1].finish_reason is FinishReason.LENGTH


def test_holds_text_back_only_while_it_may_become_a_stop(tokenizer: Tokenizer) -> None:
    """S-STOP-EMPTY-DELTAS: a long stop does not delay text that cannot begin it."""
    ids = ids_of(tokenizer, "Paris is the capital")
    found = events(tokenizer, ids, stops=("zebra " * 50,))
    assert [token.text for token in found] == [tokenizer.token_text(i) for i in ids]


def test_a_stop_wins_over_the_engines_reason_for_the_same_token(tokenizer: Tokenizer) -> None:
    found = events(tokenizer, ids_of(tokenizer, "Paris"), stops=("is",), reason=LENGTH)
    assert joined(found) == "Par"
    assert found[-1].finish_reason is FinishReason.STOP


def test_eos_is_no_part_of_the_text(tokenizer: Tokenizer) -> None:
    """L-EOS-SOURCES"""
    found = events(tokenizer, [*ids_of(tokenizer, "Paris"), IM_END], reason=EOS)
    assert joined(found) == "Paris"
    assert found[-1].special
    assert found[-1].text == ""
    assert found[-1].finish_reason is FinishReason.EOS


def test_a_special_token_spelled_by_a_stop_ends_the_choice(tokenizer: Tokenizer) -> None:
    """E-STOP-MIDTOKEN: a stop equal to a special token's text."""
    ids = [*ids_of(tokenizer, "Paris"), IM_START, *ids_of(tokenizer, "user")]
    found = events(tokenizer, ids, stops=("<|im_start|>",))
    assert joined(found) == "Paris"
    assert found[-1].token_id == IM_START
    assert found[-1].finish_reason is FinishReason.STOP
    kept = events(tokenizer, ids, stops=("<|im_start|>",), include_stop_str=True)
    assert joined(kept) == "Paris<|im_start|>"


def test_other_special_tokens_neither_show_nor_break_a_stop(tokenizer: Tokenizer) -> None:
    ids = [*ids_of(tokenizer, "Pa"), IM_START, *ids_of(tokenizer, "ris!")]
    found = events(tokenizer, ids, stops=("Paris",))
    assert joined(found) == ""
    assert found[-1].finish_reason is FinishReason.STOP


def test_an_unfinished_character_at_the_end_is_flushed_with_the_last_token(
    tokenizer: Tokenizer,
) -> None:
    """S-UTF8-SPLIT: and flushed through the matcher, like all text before it."""
    ids = [byte_ids(tokenizer)[bytes([byte])] for byte in b"x\xf0\x9f"]
    found = events(tokenizer, ids)
    assert [token.text for token in found] == ["x", "", "\ufffd"]
    stopped = events(tokenizer, ids, stops=("x\ufffd",))
    assert joined(stopped) == ""
    assert stopped[-1].finish_reason is FinishReason.STOP


def test_a_choice_that_is_cut_gives_back_what_it_held(tokenizer: Tokenizer) -> None:
    choice = ChoiceDecoder(tokenizer, index=0, stops=StopStrings(("Paris!",)))
    shown = [choice.push(SampledToken(token_id=i), None) for i in ids_of(tokenizer, "to Paris")]
    assert joined(shown) == "to "
    assert choice.cut() == ("Paris", FinishReason.DEADLINE)


def test_an_unfinished_character_of_a_cut_choice_may_complete_a_stop(tokenizer: Tokenizer) -> None:
    """S-UTF8-SPLIT: as with a last token, the rest goes through the matcher."""
    ids = [byte_ids(tokenizer)[bytes([byte])] for byte in b"x\xf0\x9f"]
    for stops, min_tokens, cut in (
        ((), 0, ("\ufffd", FinishReason.DEADLINE)),
        (("\ufffd",), 0, ("", FinishReason.STOP)),
        (("\ufffd",), 9, ("\ufffd", FinishReason.DEADLINE)),  # it may not end that early
    ):
        choice = ChoiceDecoder(tokenizer, index=0, stops=StopStrings(stops), min_tokens=min_tokens)
        assert joined([choice.push(SampledToken(token_id=i), None) for i in ids]) == "x"
        assert choice.cut() == cut


def test_logprobs_carry_the_entrys_text_and_bytes(tokenizer: Tokenizer) -> None:
    token_id = byte_ids(tokenizer)[b"\xf0"]
    sampled = SampledToken(
        token_id=token_id, logprob=-0.5, top_logprobs=((token_id, -0.5), (IM_END, -2.0))
    )
    token = ChoiceDecoder(tokenizer, index=0).push(sampled, None)
    assert token.logprob is not None
    assert token.logprob.token_id == token_id
    assert token.logprob.text == "\ufffd"
    assert token.logprob.raw == b"\xf0"
    assert token.logprob.logprob == -0.5
    assert [entry.text for entry in token.top_logprobs] == ["\ufffd", "<|im_end|>"]
    assert token.top_logprobs[1].raw == b"<|im_end|>"


def test_without_logprobs_none_are_made_up(tokenizer: Tokenizer) -> None:
    token = ChoiceDecoder(tokenizer, index=0).push(SampledToken(token_id=5), None)
    assert token.logprob is None
    assert token.top_logprobs == ()


@given(data=st.data(), stops=st.lists(st.text("abF漢 ", min_size=1, max_size=3), max_size=2))
def test_goes_on_anywhere_as_if_it_had_been_there_from_the_start(
    tokenizer: Tokenizer, data: st.DataObject, stops: list[str]
) -> None:
    text = data.draw(st.text("abF漢🌶 ", min_size=1, max_size=12))
    ids = data.draw(st.sampled_from([ids_of(tokenizer, text), spelt(tokenizer, text)]))
    whole = events(tokenizer, ids, stops=tuple(stops))
    cut = data.draw(st.integers(0, len(whole) - 1))
    reader_has = joined(whole[:cut])
    choice = ChoiceDecoder(tokenizer, index=3, stops=StopStrings(tuple(stops)))

    choice.resume(ids[:cut], reader_has)

    rest = [
        choice.push(SampledToken(token_id=token_id), LENGTH if i == len(ids) - 1 else None)
        for i, token_id in enumerate(ids[cut : len(whole)], cut)
    ]
    assert rest == whole[cut:]


@given(data=st.data())
def test_goes_on_from_another_spelling_with_no_text_lost_or_repeated(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    """The reader may have more than the spelling shows, as when it ends with a stop's beginning."""
    text = data.draw(st.text("ab漢 ", min_size=2, max_size=12))
    cut = data.draw(st.integers(1, len(text) - 1))
    choice = ChoiceDecoder(tokenizer, index=3, stops=StopStrings((text[cut - 1 :] + "!",)))

    choice.resume(ids_of(tokenizer, text[:cut]), text[:cut])

    rest = ids_of(tokenizer, text[cut:])
    pushed = [
        choice.push(SampledToken(token_id=token_id), LENGTH if i == len(rest) - 1 else None)
        for i, token_id in enumerate(rest)
    ]
    assert text[:cut] + joined(pushed) == text


def test_min_tokens_count_from_the_start_of_the_answer(tokenizer: Tokenizer) -> None:
    ids = spelt(tokenizer, "abab")
    choice = ChoiceDecoder(tokenizer, index=0, stops=StopStrings(("ab",)), min_tokens=3)
    choice.resume(ids[:2], "ab")
    rest = [choice.push(SampledToken(token_id=token_id), None) for token_id in ids[2:]]
    assert [token.finish_reason for token in rest] == [None, FinishReason.STOP]
    assert joined(rest) == ""
