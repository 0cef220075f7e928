"""What a model's files say about text, whichever format they have. Knows no format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """Read once from a GGUF file or a model folder; the stuff a `Tokenizer` is made of."""

    path: Path
    encoder: tokenizers.Tokenizer
    is_sentencepiece: bool = False  # how its entries are written: else as byte-level BPE has them
    bos_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()  # from every place that names one
    special_tokens: Mapping[str, str]  # `bos_token`, `eos_token` ... as templates know them
    chat_template: str | None = None
    chat_template_origin: str = ""  # the file (and key) it stood in, for error messages
    max_model_len: int | None = None  # tokens of context
