"""Read the tokenizer of a Hugging Face model folder.

tokenizer.json says how text becomes ids; the files around it say which ids are special, and each of
them may be missing or say it in several shapes:

* special tokens: tokenizer_config.json, then special_tokens_map.json; a string, an object with
  `content`, or null;
* the chat template: chat_template.jinja, then chat_template.json, then tokenizer_config.json; a
  string, or a list of named ones of which "default" is taken;
* ids that end an answer: the union of generation_config.json, config.json and `eos_token`; an id, a
  list of ids, or the token itself;
* the context length: config.json; tokenizer_config.json's `model_max_length` only lowers it, as it
  is often a mark for "no limit" of about 1e30.

A file that is there but cannot be read is an error; unknown fields are ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import tokenizers
from tokenizers import decoders

from backends.text.sentencepiece import decodes_pieces
from backends.text.tokenizer_files import TokenizerFiles
from native_engine.errors import ModelFileError

logger = logging.getLogger(__name__)

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")

NO_LIMIT = 2**31
"""A `model_max_length` from here on means that the tokenizer knows of no limit."""

Json = Mapping[str, object]


def read_folder(path: Path) -> TokenizerFiles:
    """Read the tokenizer of a model folder.

    Raises:
        ModelFileError: a file is missing, no JSON, or describes a tokenizer of a kind that this
        does not read.
    """
    config = _read_json(path / "tokenizer_config.json")
    special_tokens = _special_tokens(config, _read_json(path / "special_tokens_map.json"))
    encoder = _encoder(path / "tokenizer.json", special_tokens)
    model_config = _read_json(path / "config.json")
    generation_config = _read_json(path / "generation_config.json")
    bos = special_tokens.get("bos_token")
    template, origin = _chat_template(path, config)
    return TokenizerFiles(
        path=path,
        encoder=encoder,
        is_sentencepiece=decodes_pieces(encoder.decoder),
        bos_id=encoder.token_to_id(bos) if bos is not None else None,
        eos_token_ids=_eos_token_ids(
            path,
            encoder,
            generation_config.get("eos_token_id"),
            model_config.get("eos_token_id"),
            special_tokens.get("eos_token"),
        ),
        special_tokens=special_tokens,
        chat_template=template,
        chat_template_origin=origin,
        max_model_len=_context_length(model_config, config),
    )


def _read_json(path: Path) -> Json:
    """The object in a file; an empty one if there is no such file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds no JSON object")
    return cast(Json, value)


def _encoder(path: Path, special_tokens: Mapping[str, str]) -> tokenizers.Tokenizer:
    if not path.exists():
        raise ModelFileError(f"{path}: missing; save the model again with its fast tokenizer")
    try:
        encoder = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing finer
        raise ModelFileError(f"{path}: cannot be read: {error}") from error
    if not isinstance(encoder.decoder, decoders.ByteLevel) and not decodes_pieces(encoder.decoder):
        raise ModelFileError(
            f"{path}: decoder is {type(encoder.decoder).__name__}; only byte-level BPE and "
            "sentencepiece with byte fallback are read"
        )
    # The file may carry settings of its training that cut or fill up every text in silence.
    encoder.no_truncation()
    encoder.no_padding()
    known = [text for text in special_tokens.values() if encoder.token_to_id(text) is not None]
    encoder.add_special_tokens(known)  # pyright: ignore[reportUnknownMemberType]
    for text in set(special_tokens.values()).difference(known):
        logger.warning("%s has no entry %r, though the model names it as special", path, text)
    return encoder


def _special_tokens(*sources: Json) -> dict[str, str]:
    """Name -> text, from the first source that names one."""
    found: dict[str, str] = {}
    for source in sources:
        for name in SPECIAL_NAMES:
            value = source.get(name)
            if isinstance(value, Mapping):
                value = cast(Json, value).get("content")
            if isinstance(value, str):
                found.setdefault(name, value)
    return found


def _eos_token_ids(path: Path, encoder: tokenizers.Tokenizer, *sources: object) -> frozenset[int]:
    vocabulary = encoder.get_vocab()
    known_ids = set(vocabulary.values())
    found: set[int] = set()
    for source in sources:
        for item in cast(list[object], source) if isinstance(source, list) else [source]:
            token_id = vocabulary.get(item) if isinstance(item, str) else item
            if isinstance(token_id, int) and token_id in known_ids:
                found.add(token_id)
            elif item is not None:
                logger.warning("%s has no token %r, though it should end answers", path, item)
    return frozenset(found)


def _chat_template(path: Path, config: Json) -> tuple[str | None, str]:
    """(template, where it stands)."""
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8-sig"), str(file)
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{file}: cannot be read: {error}") from error
    file = path / "chat_template.json"
    template = _default_template(_read_json(file).get("chat_template"))
    if template is not None:
        return template, f"{file}: chat_template"
    template = _default_template(config.get("chat_template"))
    return template, f"{path / 'tokenizer_config.json'}: chat_template"


def _default_template(value: object) -> str | None:
    if isinstance(value, list):
        named = [cast(Json, item) for item in cast(list[object], value) if isinstance(item, dict)]
        value = next(
            (item.get("template") for item in named if item.get("name") == "default"), None
        )
    return value if isinstance(value, str) else None


def _context_length(model_config: Json, tokenizer_config: Json) -> int | None:
    lengths = [
        model_config.get("max_position_embeddings"),
        model_config.get("n_positions"),
        tokenizer_config.get("model_max_length"),
    ]
    sane = [int(n) for n in lengths if isinstance(n, int | float) and 0 < n < NO_LIMIT]
    return min(sane, default=None)
