from __future__ import annotations

import unicodedata

import pytest
import tokenizers
from tokenizers import models

from backends.text.pretokenizers import WORD_RULES

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("pre", "pattern"),
    [
        ("llama-bpe", LLAMA_3),
        ("qwen2", LLAMA_3.replace("{1,3}", "")),
        ("tekken", TEKKEN),
        ("gpt-4o", GPT_4O),
        ("gpt-2", None),
        ("smollm", None),
    ],
)
def test_the_pattern_is_the_one_in_the_familys_tokenizer_file(
    pre: str, pattern: str | None
) -> None:
    assert WORD_RULES[pre].pattern == pattern


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["It", "'s", "Ġ2024", "!", "ĊĊ"]),
        ("smollm", ["It", "'s", "Ġ", "2", "0", "2", "4", "!", "ĊĊ"]),
        ("llama-bpe", ["It", "'s", "Ġ", "202", "4", "!ĊĊ"]),
        ("qwen2", ["It", "'s", "Ġ", "2", "0", "2", "4", "!ĊĊ"]),
        ("tekken", ["It", "'s", "Ġ", "2", "0", "2", "4", "!ĊĊ"]),
        ("gpt-4o", ["It's", "Ġ", "202", "4", "!ĊĊ"]),
    ],
)
def test_cuts_text_into_the_familys_words(pre: str, expected: list[str]) -> None:
    cut = WORD_RULES[pre].pre_tokenizer().pre_tokenize_str("It's 2024!\n\n")
    assert [word for word, _ in cut] == expected


def test_every_rule_keeps_every_byte_of_the_text() -> None:
    text = "It's  2024!\r\n\tŽluťoučký 漢字 🌶️\u00a0x "
    for rule in WORD_RULES.values():
        encoder = tokenizers.Tokenizer(models.BPE())
        encoder.pre_tokenizer = rule.pre_tokenizer()
        cut = encoder.pre_tokenizer.pre_tokenize_str(text)
        assert sum(len(word) for word, _ in cut) == len(text.encode())


def test_only_qwen2_normalizes() -> None:
    normalizing = {pre for pre, rule in WORD_RULES.items() if rule.normalizer() is not None}
    assert normalizing == {"qwen2"}
    normalizer = WORD_RULES["qwen2"].normalizer()
    assert normalizer is not None
    decomposed = unicodedata.normalize("NFD", "é")
    assert normalizer.normalize_str(decomposed) == "é"
