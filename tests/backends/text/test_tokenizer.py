from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, strategies as st
from tokenizers import decoders, models

from backends.text.gguf_tokenizer import read_gguf
from backends.text.tokenizer import Tokenizer, load_tokenizer
from backends.text.tokenizer_files import TokenizerFiles
from native_engine.errors import ModelFileError
from tests.backends.text.conftest import REAL_MODEL
from tests.backends.text.tiny import (
    CHATML,
    CORPUS,
    ENDOFTEXT,
    IM_END,
    IM_START,
    save_folder,
    save_gguf,
    trained_encoder,
)

TEXTS = (
    *CORPUS,
    "",
    " ",
    "a<|im_end|>b",
    "  two  spaces ",
    "\r\n\t",
    "0123",
    "\u00ad\u2028é",
    "x\0y",
)


def test_a_folder_and_a_gguf_file_of_one_model_encode_alike(tmp_path: Path) -> None:
    folder = load_tokenizer(save_folder(tmp_path / "folder"))
    gguf = load_tokenizer(save_gguf(tmp_path / "model.gguf"))
    reference = trained_encoder()
    for text in TEXTS:
        expected = reference.encode(text).ids
        assert folder.encode(text, add_special_tokens=True) == expected
        assert gguf.encode(text, add_special_tokens=True) == expected
        spans = gguf.encode_with_offsets(text, add_special_tokens=True)
        assert spans == folder.encode_with_offsets(text, add_special_tokens=True)
    assert gguf.num_token_ids == folder.num_token_ids == reference.get_vocab_size()
    for token_id in range(reference.get_vocab_size()):
        assert gguf.token_bytes(token_id) == folder.token_bytes(token_id)
        assert gguf.is_special(token_id) == folder.is_special(token_id)


@given(text=st.text())
def test_decodes_what_it_encoded(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=True, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_decodes_every_entry_as_the_reference_does(tokenizer: Tokenizer) -> None:
    reference = trained_encoder()
    for token_id in range(reference.get_vocab_size()):
        expected = reference.decode([token_id], skip_special_tokens=False)
        assert tokenizer.token_text(token_id) == expected


def test_parses_special_tokens_unless_told_not_to(tokenizer: Tokenizer) -> None:
    assert IM_END in tokenizer.encode("a<|im_end|>b", add_special_tokens=False)
    literal = tokenizer.encode("a<|im_end|>b", add_special_tokens=False, parse_special=False)
    assert not set(literal) & {ENDOFTEXT, IM_START, IM_END}


def test_leaves_special_tokens_out_of_a_decoded_answer(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("Paris", add_special_tokens=False), IM_END]
    assert tokenizer.decode(ids) == "Paris"
    assert tokenizer.token_bytes(IM_END) == b"<|im_end|>"


@pytest.mark.parametrize("token_id", [-1, 10**9])
def test_an_id_without_an_entry_stands_for_no_bytes(tokenizer: Tokenizer, token_id: int) -> None:
    """L-VOCAB-PADDED: a model's logits may have more rows than the vocabulary has entries."""
    assert tokenizer.token_bytes(token_id) == b""
    assert tokenizer.decode([token_id]) == ""


def test_an_added_token_that_is_not_ascii_keeps_its_own_bytes(tmp_path: Path) -> None:
    encoder = trained_encoder()
    encoder.add_tokens(["é", "<\uff5cend\uff5c>", "two words"])
    folder = load_tokenizer(save_folder(tmp_path / "folder", encoder=encoder))
    gguf = load_tokenizer(save_gguf(tmp_path / "model.gguf", encoder=encoder))
    for text in ("é", "<\uff5cend\uff5c>", "two words"):
        for loaded in (folder, gguf):
            ids = loaded.encode(text, add_special_tokens=False)
            assert len(ids) == 1
            assert loaded.token_text(ids[0]) == text
            assert not loaded.is_special(ids[0])


def test_an_entry_outside_the_byte_alphabet_is_its_own_text() -> None:
    encoder = tokenizers.Tokenizer(models.BPE(vocab={"a b": 0, "Ġb": 1, "漢": 2}, merges=[]))
    encoder.decoder = decoders.ByteLevel()
    loaded = Tokenizer(TokenizerFiles(path=Path("x"), encoder=encoder, special_tokens={}))
    assert [loaded.token_bytes(i) for i in range(3)] == [b"a b", b" b", "漢".encode()]


def test_offsets_count_characters_and_split_characters_share_theirs(tokenizer: Tokenizer) -> None:
    text = "é🌶x<|im_end|>"
    spans = tokenizer.encode_with_offsets(text, add_special_tokens=False)
    assert [token_id for token_id, _, _ in spans] == tokenizer.encode(
        text, add_special_tokens=False
    )
    assert {text[start:stop] for _, start, stop in spans} == {"é", "🌶", "x", "<|im_end|>"}


def test_threads_share_one_tokenizer(tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode(CORPUS[0], add_special_tokens=False)
    results: list[list[int]] = []

    def work() -> None:
        for _ in range(50):
            ids = tokenizer.encode(CORPUS[0], add_special_tokens=False)
            tokenizer.encode(CORPUS[0], add_special_tokens=False, parse_special=False)
            results.append(ids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 200


def test_long_texts_are_encoded_without_the_interpreter_lock(tokenizer: Tokenizer) -> None:
    """E-LONG-PROMPT-BLOCKS-LOOP: other threads go on while a huge prompt is encoded."""
    turns = 0
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.wait(0.0005):
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    turns_before = turns
    tokenizer.encode(CORPUS[1] * 8_000, add_special_tokens=False)
    turns_after = turns
    done.set()
    counter.join()
    # Under the lock the counter would get a turn before and one after at most.
    assert turns_after - turns_before > 10


def test_the_token_that_ends_turns_in_the_template_ends_answers(tmp_path: Path) -> None:
    """L-EOS-SOURCES: generation_config names one id, but turns end with another."""
    files = {
        "tokenizer_config.json": {"chat_template": CHATML},
        "generation_config.json": {"eos_token_id": ENDOFTEXT},
    }
    folder = load_tokenizer(save_folder(tmp_path / "folder", files=files))
    gguf_path = save_gguf(tmp_path / "model.gguf", eos_token_id=ENDOFTEXT, chat_template=CHATML)
    for loaded in (folder, load_tokenizer(gguf_path)):
        assert loaded.eos_token_ids == (ENDOFTEXT, IM_END)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only one message') }}",
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}",
        "{{ messages[0].content }}",
    ],
)
def test_a_template_without_a_turn_end_adds_no_eos(tmp_path: Path, template: str) -> None:
    path = save_gguf(tmp_path / "model.gguf", chat_template=template)
    assert load_tokenizer(path).eos_token_ids == (IM_END,)


def test_eos_tokens_are_special_whatever_the_file_says(tmp_path: Path) -> None:
    """L-EOS-SOURCES: the token that ends an answer is not in its text."""
    encoder = trained_encoder()
    path = save_gguf(tmp_path / "model.gguf", eot_token_id=300)
    loaded = load_tokenizer(path)
    assert not encoder.get_added_tokens_decoder().get(300)
    assert loaded.is_special(300)


def test_refuses_a_template_with_a_syntax_error_naming_file_and_line(tmp_path: Path) -> None:
    """L-TEMPLATE-FILE: a broken template stops the start, not the first chat."""
    files = {"chat_template.jinja": "{% for m in messages %}\n{{ m.content }\n{% endfor %}"}
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja: line 2: "):
        load_tokenizer(save_folder(tmp_path, files=files))


def test_refuses_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nothing\.gguf: cannot be opened"):
        load_tokenizer(tmp_path / "nothing.gguf")


@pytest.mark.weights
def test_the_real_model_encodes_as_its_facts_say(real_tokenizer: Tokenizer) -> None:
    def ids(text: str) -> list[int]:
        return real_tokenizer.encode(text, add_special_tokens=True)

    assert ids("🌶") == [10813, 230, 131]
    assert ids("漢") == [177, 137, 112]
    assert ids("ก") == [10283, 219]
    assert ids("a<|im_end|>b") == [81, 2, 82]
    literal = real_tokenizer.encode("a<|im_end|>b", add_special_tokens=True, parse_special=False)
    assert literal[0] == 81
    assert 2 not in literal
    assert len(ids("2048")) == 4
    assert real_tokenizer.num_token_ids == 49152
    assert real_tokenizer.max_model_len == 8192
    assert real_tokenizer.bos_id == 1
    assert real_tokenizer.eos_token_ids == (2,)
    assert real_tokenizer.chat_template is not None


@pytest.mark.weights
def test_the_real_model_saved_as_a_folder_encodes_alike(
    real_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    read_gguf(REAL_MODEL).encoder.save(str(tmp_path / "tokenizer.json"))
    assert real_tokenizer.chat_template is not None
    (tmp_path / "chat_template.jinja").write_text(real_tokenizer.chat_template.source)
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "model_max_length": 1e30}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    folder = load_tokenizer(tmp_path)
    for text in TEXTS:
        expected = real_tokenizer.encode(text, add_special_tokens=True)
        assert folder.encode(text, add_special_tokens=True) == expected
        assert folder.decode(expected) == real_tokenizer.decode(expected)
    assert folder.eos_token_ids == real_tokenizer.eos_token_ids
