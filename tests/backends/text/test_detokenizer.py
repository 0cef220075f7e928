from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import tokenizers
from hypothesis import given, strategies as st
from tokenizers import decoders, models
from transformers.convert_slow_tokenizer import bytes_to_unicode

from backends.text.detokenizer import Detokenizer
from backends.text.tokenizer import Tokenizer
from backends.text.tokenizer_files import TokenizerFiles
from tests.backends.text.tiny import ENDOFTEXT, IM_END, IM_START

HARD_TEXT = "a🌶️漢字👩‍👩‍👧č e\u0301\u0e01\U0010ffff\0"


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def byte_ids(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The entry of each single byte."""
    entries = {tokenizer.token_bytes(i): i for i in range(tokenizer.num_token_ids)}
    return {entry: i for entry, i in entries.items() if len(entry) == 1}


def test_a_character_of_several_tokens_comes_whole(tokenizer: Tokenizer) -> None:
    """S-UTF8-SPLIT"""
    ids = tokenizer.encode(HARD_TEXT, add_special_tokens=False)
    assert len(ids) > len(HARD_TEXT)
    found = pieces(tokenizer, ids)
    assert "".join(found) == tokenizer.decode(ids) == HARD_TEXT
    assert not any("\ufffd" in piece for piece in found)


@given(text=st.text(min_size=1), data=st.data())
def test_text_split_at_every_byte_joins_to_the_decoded_bytes(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    """Promise 10, S-UTF8-SPLIT: one token a byte, the prompt taking any first part of them."""
    entry = byte_ids(tokenizer)
    raw = text.encode()
    answer = raw[data.draw(st.integers(0, len(raw)), label="prompt bytes") :]
    found = pieces(tokenizer, [entry[bytes([byte])] for byte in answer])
    assert "".join(found) == answer.decode("utf-8", "replace")


@given(raw=st.binary(max_size=24), data=st.data())
def test_any_bytes_in_any_tokens_join_to_the_decoded_bytes(raw: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(raw))))
    bounds = sorted([0, *cuts, len(raw)])
    parts = [raw[start:stop] for start, stop in pairwise(bounds) if start < stop]
    entries = sorted(set(parts))
    tokenizer = tokenizer_of(entries)
    ids = [entries.index(part) for part in parts]
    assert "".join(pieces(tokenizer, ids)) == raw.decode("utf-8", "replace")
    assert tokenizer.decode(ids) == raw.decode("utf-8", "replace")


def tokenizer_of(entries: list[bytes]) -> Tokenizer:
    """A vocabulary of just these entries."""
    alphabet: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    vocabulary = {"".join(alphabet[byte] for byte in entry): i for i, entry in enumerate(entries)}
    encoder = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    encoder.decoder = decoders.ByteLevel()
    files = TokenizerFiles(path=Path(__file__), encoder=encoder, special_tokens={})
    return Tokenizer(files)


def test_special_tokens_contribute_nothing_even_inside_a_character(tokenizer: Tokenizer) -> None:
    entry = byte_ids(tokenizer)
    first, second = (entry[bytes([byte])] for byte in "é".encode())
    ids = [IM_START, first, IM_END, second, ENDOFTEXT]
    assert pieces(tokenizer, ids) == ["", "", "", "é", "", ""]


def test_leading_spaces_belong_to_the_answer(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" Paris", add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids)) == " Paris"


def test_an_unfinished_character_is_flushed_as_the_whole_answer_would_show_it(
    tokenizer: Tokenizer,
) -> None:
    entry = byte_ids(tokenizer)
    ids = [entry[bytes([byte])] for byte in b"x\xf0\x9f"]
    assert pieces(tokenizer, ids) == ["x", "", "", "\ufffd"]


def test_ids_beyond_the_vocabulary_contribute_nothing(tokenizer: Tokenizer) -> None:
    """L-VOCAB-PADDED"""
    assert pieces(tokenizer, [tokenizer.num_token_ids + 5]) == ["", ""]
