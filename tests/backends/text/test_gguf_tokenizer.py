from __future__ import annotations

from pathlib import Path

import pytest

from backends.text.gguf_tokenizer import read_gguf
from native_engine.errors import ModelFileError
from tests.backends.text.tiny import ENDOFTEXT, IM_END, IM_START, save_gguf, trained_encoder


def test_collects_every_id_that_ends_an_answer(tmp_path: Path) -> None:
    """L-EOS-SOURCES"""
    path = save_gguf(tmp_path / "m.gguf", eos_token_id=ENDOFTEXT, eot_token_id=2, eom_token_id=7)
    assert read_gguf(path).eos_token_ids == {ENDOFTEXT, IM_END, 7}


def test_reads_special_tokens_template_and_context_length(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", unknown_token_id=ENDOFTEXT, chat_template="{{ x }}")
    files = read_gguf(path)
    assert files.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    assert files.bos_id == IM_START
    assert files.chat_template == "{{ x }}"
    assert files.max_model_len == 512


def test_adds_bos_and_eos_only_if_the_file_says_so(tmp_path: Path) -> None:
    plain = read_gguf(save_gguf(tmp_path / "plain.gguf")).encoder
    both = read_gguf(
        save_gguf(tmp_path / "both.gguf", add_bos_token=True, add_eos_token=True)
    ).encoder
    text_ids = plain.encode("Paris").ids
    assert text_ids == trained_encoder().encode("Paris").ids
    assert both.encode("Paris").ids == [IM_START, *text_ids, IM_END]
    assert both.encode("Paris", add_special_tokens=False).ids == text_ids


def test_families_that_add_a_bos_by_habit_do_so_unless_told_not_to(tmp_path: Path) -> None:
    by_habit = read_gguf(save_gguf(tmp_path / "a.gguf", pre="llama-bpe"))
    told_not_to = read_gguf(save_gguf(tmp_path / "b.gguf", pre="llama-bpe", add_bos_token=False))
    assert by_habit.encoder.encode("Paris").ids[0] == IM_START
    assert told_not_to.encoder.encode("Paris").ids[0] != IM_START


def test_a_family_that_normalizes_does_so_before_encoding(tmp_path: Path) -> None:
    encoder = read_gguf(save_gguf(tmp_path / "m.gguf", pre="qwen2")).encoder
    assert encoder.encode("e\u0301").ids == encoder.encode("\u00e9").ids


def test_unused_entries_are_no_part_of_the_vocabulary(tmp_path: Path) -> None:
    encoder = trained_encoder()
    size = encoder.get_vocab_size()
    tokens = [encoder.id_to_token(i) for i in range(size)] + ["[PAD0]", "[PAD1]"]
    types = [3] * 3 + [1] * (size - 3) + [5] * 2
    files = read_gguf(save_gguf(tmp_path / "m.gguf", tokens=tokens, token_type=types))
    assert files.encoder.get_vocab_size() == size
    assert files.encoder.token_to_id("[PAD0]") is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "bert"}, r"m\.gguf: tokenizer\.ggml\.model is 'bert'; only byte-level BPE"),
        ({"pre": "no-such"}, r"m\.gguf: tokenizer\.ggml\.pre is 'no-such'; .* known .* smollm"),
        ({"bos_token_id": 10**6}, r"tokenizer\.ggml\.bos_token_id is 1000000; the vocabulary has"),
        ({"tokens": [*"abca"], "token_type": [1] * 4}, r"tokenizer\.ggml\.tokens holds 'a' twice"),
        ({"tokens": [1, 2]}, r"tokenizer\.ggml\.tokens holds 1, which is no string"),
        ({"merges": ["no-such entry"]}, r"tokenizer\.ggml\.merges cannot be used: .*no-such"),
        ({"token_type": [1]}, r"tokenizer\.ggml\.token_type must be a list of \d+"),
    ],
)
def test_refuses_a_vocabulary_it_cannot_use_naming_file_and_key(
    tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    path = save_gguf(tmp_path / "m.gguf", **keys)  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match=message):
        read_gguf(path)


@pytest.mark.parametrize("key", ["model", "pre", "tokens", "token_type", "merges"])
def test_refuses_a_file_without_a_tokenizer_key(tmp_path: Path, key: str) -> None:
    path = save_gguf(tmp_path / "m.gguf", drop=(key,))
    with pytest.raises(ModelFileError, match=rf"m\.gguf: tokenizer\.ggml\.{key} "):
        read_gguf(path)


def test_refuses_to_add_a_bos_that_has_no_id(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", add_bos_token=True, drop=("bos_token_id",))
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.bos_token_id is missing"):
        read_gguf(path)
