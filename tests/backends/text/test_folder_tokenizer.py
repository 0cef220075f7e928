from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from backends.text.folder_tokenizer import read_folder
from backends.text.tokenizer import load_tokenizer
from native_engine.errors import ModelFileError
from tests.backends.text.tiny import ENDOFTEXT, IM_END, IM_START, save_folder, trained_encoder

BOS, EOS = "<|im_start|>", "<|im_end|>"


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"bos_token": BOS, "eos_token": EOS}},
        {
            "tokenizer_config.json": {
                "bos_token": {"content": BOS, "lstrip": False, "__type": "AddedToken"},
                "eos_token": {"content": EOS},
                "a_field_of_tomorrow": [1, {"x": None}],
            }
        },
        {"special_tokens_map.json": {"bos_token": {"content": BOS}, "eos_token": EOS}},
        {
            "tokenizer_config.json": {"bos_token": None, "eos_token": EOS},
            "special_tokens_map.json": {"bos_token": BOS},
        },
    ],
    ids=["strings", "maps", "map file only", "null and map file"],
)
def test_special_tokens_come_as_strings_maps_or_null(
    tmp_path: Path, files: dict[str, object]
) -> None:
    """L-TOKCONFIG-MAP"""
    found = read_folder(save_folder(tmp_path, files=files))
    assert found.special_tokens == {"bos_token": BOS, "eos_token": EOS}
    assert found.bos_id == IM_START
    assert found.eos_token_ids == {IM_END}


def test_a_special_token_named_only_in_the_config_is_parsed_in_text(tmp_path: Path) -> None:
    encoder = trained_encoder()
    word = encoder.id_to_token(300)
    assert word is not None
    config = {"tokenizer_config.json": {"eos_token": word}}
    loaded = load_tokenizer(save_folder(tmp_path, encoder=encoder, files=config))
    assert loaded.is_special(300)
    assert loaded.encode(f"x{word}y", add_special_tokens=False)[1] == 300


def test_warns_of_a_special_token_that_the_vocabulary_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"},
        "generation_config.json": {"eos_token_id": [-1, 10**30, ENDOFTEXT, {"no": "id"}]},
    }
    with caplog.at_level(logging.WARNING):
        found = read_folder(save_folder(tmp_path, files=files))
    assert found.bos_id is None
    assert found.eos_token_ids == {ENDOFTEXT}
    for unknown in ("'<s>'", "'</s>'", "-1", str(10**30), "{'no': 'id'}"):
        assert unknown in caplog.text


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [
        ({"eos_token_id": ENDOFTEXT}, {}, {ENDOFTEXT, IM_END}),
        ({"eos_token_id": [ENDOFTEXT, 7]}, {}, {ENDOFTEXT, 7, IM_END}),
        ({"eos_token_id": None}, {"eos_token_id": ENDOFTEXT}, {ENDOFTEXT, IM_END}),
        ({"eos_token_id": "<|endoftext|>"}, {"eos_token_id": [7]}, {ENDOFTEXT, 7, IM_END}),
        ({}, {}, {IM_END}),
    ],
)
def test_ids_that_end_an_answer_are_the_union_of_all_sources(
    tmp_path: Path,
    generation: dict[str, object],
    model: dict[str, object],
    expected: set[int],
) -> None:
    """L-EOS-SOURCES"""
    files = {
        "generation_config.json": generation,
        "config.json": model,
        "tokenizer_config.json": {"eos_token": EOS},
    }
    assert read_folder(save_folder(tmp_path, files=files)).eos_token_ids == expected


@pytest.mark.parametrize(
    ("model", "tokenizer", "expected"),
    [
        ({"max_position_embeddings": 8192}, {"model_max_length": 1e30}, 8192),
        ({"max_position_embeddings": 8192}, {"model_max_length": int(1e30)}, 8192),
        ({"max_position_embeddings": 8192}, {"model_max_length": 512}, 512),
        ({"max_position_embeddings": 8192}, {"model_max_length": 131072}, 8192),
        ({"max_position_embeddings": 8192}, {}, 8192),
        ({"n_positions": 1024}, {}, 1024),
        ({}, {"model_max_length": 1e30}, None),
        ({}, {}, None),
    ],
)
def test_the_context_length_is_the_models_and_the_tokenizer_only_lowers_it(
    tmp_path: Path, model: dict[str, object], tokenizer: dict[str, object], expected: int | None
) -> None:
    """L-MODEL-MAX-LENGTH"""
    files = {"config.json": model, "tokenizer_config.json": tokenizer}
    assert read_folder(save_folder(tmp_path, files=files)).max_model_len == expected


def test_finds_the_chat_template_in_its_file_first(tmp_path: Path) -> None:
    """L-TEMPLATE-FILE: the order is chat_template.jinja, chat_template.json, the config."""
    files: dict[str, object] = {
        "chat_template.jinja": "from jinja",
        "chat_template.json": {"chat_template": "from json"},
        "tokenizer_config.json": {"chat_template": "from config"},
    }
    for name, expected in zip(tuple(files), ("jinja", "json", "config"), strict=True):
        found = read_folder(save_folder(tmp_path / name, files=files))
        assert found.chat_template == f"from {expected}"
        assert name in found.chat_template_origin
        del files[name]
    assert read_folder(save_folder(tmp_path / "none", files=files)).chat_template is None


def test_takes_the_default_of_several_named_templates(tmp_path: Path) -> None:
    """L-TOKCONFIG-MAP"""
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    files = {"tokenizer_config.json": {"chat_template": named}}
    assert read_folder(save_folder(tmp_path, files=files)).chat_template == "plain"


def test_reads_a_template_file_with_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    """L-TEMPLATE-FILE"""
    files = {"chat_template.jinja": "\ufeff{{ 'a' }}\r\n{{ 'b' }}"}
    assert read_folder(save_folder(tmp_path, files=files)).chat_template == "{{ 'a' }}\n{{ 'b' }}"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", "{broken"),
        ("generation_config.json", "[]"),
        ("config.json", '{"a": '),
        ("special_tokens_map.json", "3"),
    ],
)
def test_a_broken_file_stops_the_start_and_is_named(
    tmp_path: Path, name: str, content: str
) -> None:
    """L-TOKCONFIG-MAP"""
    with pytest.raises(ModelFileError, match=name.replace(".", r"\.")):
        read_folder(save_folder(tmp_path, files={name: content}))


def test_a_template_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    save_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja: cannot be read"):
        read_folder(tmp_path)


def test_refuses_a_folder_without_a_fast_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: missing"):
        read_folder(tmp_path)


def test_refuses_a_tokenizer_file_that_is_broken(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: cannot be read"):
        read_folder(tmp_path)


def test_refuses_a_tokenizer_that_is_not_byte_level(tmp_path: Path) -> None:
    encoder = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: decoder is NoneType; only byte"):
        read_folder(save_folder(tmp_path, encoder=encoder))


def test_truncation_and_padding_saved_with_the_tokenizer_do_not_touch_prompts(
    tmp_path: Path,
) -> None:
    encoder = trained_encoder()
    encoder.enable_truncation(4)
    encoder.enable_padding(length=64)
    found = read_folder(save_folder(tmp_path, encoder=encoder)).encoder
    assert found.encode("x y z x y z").ids == trained_encoder().encode("x y z x y z").ids
