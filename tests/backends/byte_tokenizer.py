"""A real tokenizer of one token per byte, so that the counting engine recites the alphabet.

Token ids are byte values, but the one behind "z" is the special token that ends an answer.
"""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers

from backends.text.tokenizer import Tokenizer
from backends.text.tokenizer_files import TokenizerFiles

EOS = "<|end|>"
EOS_ID = ord("z") + 1
VOCAB_SIZE = 257

TEMPLATE = "{{ strftime_now('%Y') }}{% for message in messages %}{{ message.content }}{% endfor %}"


def byte_tokenizer(chat_template: str | None = TEMPLATE) -> Tokenizer:
    alphabet = _byte_alphabet()
    vocabulary = {alphabet[byte]: byte for byte in range(256) if byte != EOS_ID}
    vocabulary |= {alphabet[EOS_ID]: 256, EOS: EOS_ID}
    encoder = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.add_special_tokens([EOS])
    return Tokenizer(
        TokenizerFiles(
            path=Path("bytes"),
            encoder=encoder,
            eos_token_ids=frozenset([EOS_ID]),
            special_tokens={"eos_token": EOS},
            chat_template=chat_template,
            chat_template_origin="bytes",
        )
    )


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself if it prints, the next free one if not."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printing else chr(next(others)) for byte in range(256)]
