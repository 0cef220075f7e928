"""Rebuild a tokenizer from the metadata of a GGUF file.

Reads vocabularies of `tokenizer.ggml.model` "gpt2", byte-level BPE, and "llama", sentencepiece's
BPE; others are refused. Does not look at tensors. Source: the GGUF specification,
ggml/docs/gguf.md (2026).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, processors

from backends.text.pretokenizers import WORD_RULES, WordRule
from backends.text.sentencepiece import build_encoder
from backends.text.tokenizer_files import TokenizerFiles
from native_engine.errors import ModelFileError
from native_engine.loader.gguf_header import Value, read_header

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # types of tokens

EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# our name for a special token -> the key of its id
SPECIAL_KEYS: Mapping[str, str] = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def read_gguf(path: Path) -> TokenizerFiles:
    """Read the tokenizer of a GGUF file.

    Raises:
        ModelFileError: not a good GGUF file, or its vocabulary is missing or of a kind that this
        does not read.
    """
    metadata = _Metadata(path, read_header(path).metadata)
    tokens = metadata.strings("tokens")
    model = metadata.get("model")
    if model not in ("gpt2", "llama"):
        raise metadata.error(
            "model",
            f"is {model!r}; only byte-level BPE ('gpt2') and sentencepiece ('llama') are read",
        )
    special_ids = {
        name: token_id
        for name, key in SPECIAL_KEYS.items()
        if (token_id := metadata.token_id(key, len(tokens))) is not None
    }
    eos_ids = [metadata.token_id(key, len(tokens)) for key in EOS_KEYS]
    entries = _Entries(metadata, tokens)
    is_sentencepiece = model == "llama"
    if is_sentencepiece:
        encoder, adds_bos = _sentencepiece(metadata, entries), True
    else:
        rule = _word_rule(metadata)
        encoder, adds_bos = _byte_level(metadata, entries, rule), rule.adds_bos
    encoder.add_tokens(entries.added())  # pyright: ignore[reportUnknownMemberType]
    encoder.post_processor = _post_processor(metadata, adds_bos, special_ids, tokens)
    template = metadata.values.get("tokenizer.chat_template")
    return TokenizerFiles(
        path=path,
        encoder=encoder,
        is_sentencepiece=is_sentencepiece,
        bos_id=special_ids.get("bos_token"),
        eos_token_ids=frozenset(token_id for token_id in eos_ids if token_id is not None),
        special_tokens={name: tokens[token_id] for name, token_id in special_ids.items()},
        chat_template=template if isinstance(template, str) else None,
        chat_template_origin=f"{path}: tokenizer.chat_template",
        max_model_len=metadata.context_length(),
    )


class _Metadata:
    """Typed access to the keys under `tokenizer.ggml.`; a wrong type is a `ModelFileError`."""

    def __init__(self, path: Path, values: Mapping[str, Value]) -> None:
        self.path = path
        self.values = values

    def error(self, key: str, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: tokenizer.ggml.{key} {problem}")

    def get(self, key: str) -> Value | None:
        return self.values.get(f"tokenizer.ggml.{key}")

    def strings(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, "is missing; convert the model again with its tokenizer")
        return [self._string(key, item) for item in value]

    def _string(self, key: str, item: Value) -> str:
        if not isinstance(item, str):
            raise self.error(key, f"holds {item!r}, which is no string")
        return item

    def token_id(self, key: str, num_tokens: int) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < num_tokens:
            raise self.error(key, f"is {value!r}; the vocabulary has {num_tokens} entries")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        return value if isinstance(value, bool) else default

    def context_length(self) -> int | None:
        architecture = self.values.get("general.architecture")
        length = self.values.get(f"{architecture}.context_length")
        return length if isinstance(length, int) and length > 0 else None


class _Entries:
    """The vocabulary: each token's text, id and type."""

    def __init__(self, metadata: _Metadata, tokens: list[str]) -> None:
        types = metadata.get("token_type")
        if not isinstance(types, list) or len(types) != len(tokens):
            raise metadata.error(
                "token_type", f"must be a list of {len(tokens)}, one for each token"
            )
        self.kinds = list(zip(tokens, types, strict=True))
        used = [text for text, kind in self.kinds if kind != UNUSED]
        self.vocabulary = {text: i for i, (text, kind) in enumerate(self.kinds) if kind != UNUSED}
        if len(self.vocabulary) != len(used):
            ((twice, _),) = Counter(used).most_common(1)
            raise metadata.error("tokens", f"holds {twice!r} twice")

    def added(self) -> list[AddedToken]:
        """Those found in a text before anything else is."""
        return [
            AddedToken(text, special=kind == CONTROL, normalized=False)
            for text, kind in self.kinds
            if kind in (CONTROL, USER_DEFINED)
        ]


def _word_rule(metadata: _Metadata) -> WordRule:
    pre = metadata.get("pre")
    if not isinstance(pre, str) or pre not in WORD_RULES:
        known = ", ".join(sorted(WORD_RULES))
        raise metadata.error("pre", f"is {pre!r}; the pre-tokenizers known here are {known}")
    return WORD_RULES[pre]


def _byte_level(metadata: _Metadata, entries: _Entries, rule: WordRule) -> tokenizers.Tokenizer:
    merges = [_pair(merge) for merge in metadata.strings("merges")]
    try:
        model = models.BPE(
            vocab=entries.vocabulary, merges=merges, ignore_merges=rule.ignore_merges
        )
    except Exception as error:  # tokenizers raises nothing finer
        raise metadata.error("merges", f"cannot be used: {error}") from error
    encoder = tokenizers.Tokenizer(model)
    if (normalizer := rule.normalizer()) is not None:
        encoder.normalizer = normalizer
    encoder.pre_tokenizer = rule.pre_tokenizer()
    encoder.decoder = decoders.ByteLevel()
    return encoder


def _sentencepiece(metadata: _Metadata, entries: _Entries) -> tokenizers.Tokenizer:
    values = metadata.get("scores")
    if not isinstance(values, list) or len(values) != len(entries.kinds):
        raise metadata.error(
            "scores", f"must be a list of {len(entries.kinds)}, one for each token"
        )
    scores: dict[str, float] = {}
    for (text, kind), score in zip(entries.kinds, values, strict=True):
        if not isinstance(score, float):
            raise metadata.error("scores", f"holds {score!r}, which is no number")
        if kind == NORMAL:
            scores[text] = score
    unknown = next((text for text, kind in entries.kinds if kind == UNKNOWN), None)
    return build_encoder(
        entries.vocabulary,
        scores,
        unknown=unknown,
        add_space_prefix=metadata.flag("add_space_prefix", True),
    )


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _post_processor(
    metadata: _Metadata, adds_bos: bool, special_ids: Mapping[str, int], tokens: list[str]
) -> processors.PostProcessor:
    """What `add_special_tokens` adds: a BOS in front, an EOS behind, or nothing."""
    wanted = {
        "bos_token": metadata.flag("add_bos_token", adds_bos),
        "eos_token": metadata.flag("add_eos_token", False),
    }
    for name, adds in wanted.items():
        if adds and name not in special_ids:
            raise metadata.error(SPECIAL_KEYS[name], "is missing, but the model adds that token")
    bos, eos = (f"{name}:0" if adds else "" for name, adds in wanted.items())
    return processors.TemplateProcessing(
        single=[piece for piece in (bos, "$A:0", eos) if piece],
        special_tokens=[
            {"id": name, "ids": [special_ids[name]], "tokens": [tokens[special_ids[name]]]}
            for name, adds in wanted.items()
            if adds
        ],
    )
