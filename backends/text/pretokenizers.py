"""How a byte-level BPE vocabulary cuts text into words before merging, by its name in GGUF files.

`tokenizer.ggml.pre` holds only a name; the pattern behind it is the one in the model family's own
tokenizer.json. The names, and which of them merge whole words first or put a BOS in front when the
file does not say, are llama.cpp's. Knows nothing of vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class WordRule:
    """How one family cuts text. Without a `pattern` GPT-2's own is used."""

    pattern: str | None = None
    split_digits: bool = False  # each digit is a word, before the pattern is applied
    nfc: bool = False  # text is brought to Unicode normal form C first
    ignore_merges: bool = False  # a word that is an entry of the vocabulary is not merged up
    adds_bos: bool = False  # what `tokenizer.ggml.add_bos_token` means when it is absent

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.split_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), "isolated"))
        use_regex = self.pattern is None
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex))
        return pre_tokenizers.Sequence(steps)


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_letters(digits: str) -> str:
    word = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{_CONTRACTION}|{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"


def _by_case(digits: str, contraction: str) -> str:
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{_UPPER}*{_LOWER}+{contraction}|{lead}{_UPPER}+{_LOWER}*{contraction}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"


_GPT_2 = WordRule()
_STARCODER = WordRule(split_digits=True)
_LLAMA_3 = WordRule(pattern=_by_letters(r"\p{N}{1,3}"), ignore_merges=True, adds_bos=True)

WORD_RULES: Mapping[str, WordRule] = {
    "gpt-2": _GPT_2,
    "olmo": _GPT_2,
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "llama-bpe": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "llama3": _LLAMA_3,
    "qwen2": WordRule(pattern=_by_letters(r"\p{N}"), nfc=True),
    "tekken": WordRule(pattern=_by_case(r"\p{N}", ""), ignore_merges=True, adds_bos=True),
    "gpt-4o": WordRule(pattern=_by_case(r"\p{N}{1,3}", f"{_CONTRACTION}?")),
}
