from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from transformers import LlamaTokenizer
from transformers.tokenization_utils_base import generate_merges

from backends.text.detokenizer import Detokenizer
from backends.text.tokenizer import Tokenizer, load_tokenizer
from native_engine.errors import ModelFileError
from tests.backends.text.pieces import BOS, EOS, NORMAL, entries, save_pieces_gguf

TEXTS = (
    "the cat is in the nation",
    "a  b   c",
    "aaaaaaa aaaa",
    "ča漢\n🌶️",
    "or the.the",
    "",
    " ",
    "tionthethes an an ",
    "or the<b>or the",
)
texts = st.text(alphabet="▁abcdehinorst .č<\n", max_size=40)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(save_pieces_gguf(tmp_path_factory.mktemp("spm") / "m.gguf"))


def transformers_tokenizer() -> LlamaTokenizer:
    vocabulary = {text: i for i, (text, _, _) in enumerate(entries())}
    scores = {text: score for text, kind, score in entries() if kind == NORMAL}
    theirs = LlamaTokenizer(vocab=vocabulary, merges=generate_merges(vocabulary, scores))
    theirs.add_tokens(["<b>"])
    return theirs


def merged_by_score(text: str) -> list[str]:
    """Sentencepiece's own procedure, spelled out: the leftmost of the best unions, until none."""
    scores = {piece: score for piece, kind, score in entries() if kind == NORMAL}
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        unions = [left + right for left, right in pairwise(pieces)]
        known = [(-scores[union], place) for place, union in enumerate(unions) if union in scores]
        if not known:
            break
        _, place = min(known)
        pieces[place : place + 2] = [unions[place]]
    spelled: list[str] = []
    for piece in pieces:
        raw = piece.encode()
        spelled += [piece] if piece in scores else [f"<0x{byte:02X}>" for byte in raw]
    return spelled


@pytest.mark.parametrize("text", TEXTS)
def test_encodes_and_decodes_as_transformers_does(tokenizer: Tokenizer, text: str) -> None:
    theirs = transformers_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not text.startswith(" ") and "<b>" not in text:  # there it puts no space in front
        assert ids == theirs.encode(text, add_special_tokens=False)
    assert theirs.decode(ids) == tokenizer.decode(ids).removeprefix(" ")


@given(text=texts.filter(lambda text: bool(text) and "<b>" not in text))
def test_merges_as_sentencepiece_defines_it(tokenizer: Tokenizer, text: str) -> None:
    numbers = {piece: i for i, (piece, _, _) in enumerate(entries())}
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert ids == [numbers[piece] for piece in merged_by_score(text)]


@given(text=st.text(min_size=1))
def test_a_text_comes_back_with_the_space_in_front(tokenizer: Tokenizer, text: str) -> None:
    """S-UTF8-SPLIT: through byte pieces too, one at a time."""
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token_id) for token_id in ids]
    assert "".join([*pieces, detokenizer.finish()]) == " " + text.replace("▁", " ")


def test_prompt_and_answer_join_to_the_text_of_all_tokens(tokenizer: Tokenizer) -> None:
    """An answer that begins with a word keeps the space before it."""
    ids = tokenizer.encode("the cat is in", add_special_tokens=False)
    prompt, answer = ids[:2], ids[2:]
    assert tokenizer.decode(prompt) == " the cat"
    assert tokenizer.decode(answer) == " is in"
    whole = transformers_tokenizer().decode(ids)
    assert whole == (tokenizer.decode(prompt) + tokenizer.decode(answer))[1:]


def test_a_file_may_ask_for_no_space_in_front_and_no_bos(tmp_path: Path) -> None:
    plain = load_tokenizer(
        save_pieces_gguf(tmp_path / "m.gguf", add_space_prefix=False, add_bos_token=False)
    )
    ids = plain.encode("the cat", add_special_tokens=True)
    assert [plain.token_text(token_id) for token_id in ids] == ["t", "he", " cat"]


def test_adds_a_bos_by_habit_and_knows_what_ends_an_answer(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a", add_special_tokens=True)[0] == BOS
    assert tokenizer.encode("", add_special_tokens=True) == [BOS]
    assert tokenizer.eos_token_ids == (EOS,)
    assert tokenizer.is_special(EOS)
    assert tokenizer.encode("</s>", add_special_tokens=False)[-1] == EOS
    assert EOS not in tokenizer.encode("</s>", add_special_tokens=False, parse_special=False)


def test_a_folder_is_read_as_the_gguf_file_is(tmp_path: Path, tokenizer: Tokenizer) -> None:
    transformers_tokenizer().save_pretrained(tmp_path)
    folder = load_tokenizer(tmp_path)
    for text in TEXTS[:5]:
        ids = folder.encode(text, add_special_tokens=False)
        assert ids == tokenizer.encode(text, add_special_tokens=False)
        assert folder.decode(ids) == " " + text
    assert folder.token_bytes(3 + 0xF0) == b"\xf0"


@pytest.mark.parametrize(
    ("drop", "keys", "message"),
    [
        ("scores", {}, r"scores must be a list of \d+"),
        ("", {"scores": [1.0]}, r"scores must be a list of \d+"),
        ("", {"scores": ["x"] * len(entries())}, r"scores holds 'x', which is no number"),
        ("bos_token_id", {}, r"bos_token_id is missing"),
    ],
)
def test_refuses_a_vocabulary_it_cannot_use(
    tmp_path: Path, drop: str, keys: dict[str, object], message: str
) -> None:
    path = save_pieces_gguf(tmp_path / "m.gguf", drop=drop, **keys)
    with pytest.raises(ModelFileError, match=rf"m\.gguf: tokenizer\.ggml\.{message}"):
        load_tokenizer(path)
