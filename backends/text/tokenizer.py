"""Text to token ids and back, for byte-level BPE and sentencepiece vocabularies.

A vocabulary entry stands for exact bytes (`token_bytes`), never for text: a character may take
several entries. Texts are decoded from bytes, invalid ones as U+FFFD.

Knows nothing of prompts, requests or engines. Safe to use from several threads; encoding lets other
threads run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from backends.text.chat_template import ChatTemplate
from backends.text.folder_tokenizer import read_folder
from backends.text.gguf_tokenizer import read_gguf
from backends.text.sentencepiece import piece_bytes
from backends.text.tokenizer_files import TokenizerFiles


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file or a Hugging Face model folder.

    Raises:
        ModelFileError: the files are missing, broken or of a kind that is not read; names file and
        key.
    """
    return Tokenizer(read_folder(path) if path.is_dir() else read_gguf(path))


class Tokenizer:
    """Encodes, decodes, and knows what the model's files say of its tokens."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Build the tables.

        Raises:
            ModelFileError: the chat template is not valid.
        """
        self._encoder = files.encoder
        self.bos_id = files.bos_id
        self.max_model_len = files.max_model_len  # tokens of context; None: the files do not say
        self.chat_template: ChatTemplate | None = None
        if files.chat_template is not None:
            self.chat_template = ChatTemplate(
                files.chat_template,
                origin=files.chat_template_origin,
                special_tokens=files.special_tokens,
            )
        added = files.encoder.get_added_tokens_decoder()
        specials = {token_id: token.content for token_id, token in added.items() if token.special}
        self.eos_token_ids = tuple(sorted(files.eos_token_ids | self._turn_end(specials)))
        self._special_ids = frozenset(specials).union(self.eos_token_ids)
        self._bytes_by_id = _bytes_by_id(files)

    @property
    def num_token_ids(self) -> int:
        """Every id below this may be decoded; a model's logits can have more rows."""
        return len(self._bytes_by_id)

    def encode(
        self, text: str, *, add_special_tokens: bool, parse_special: bool = True
    ) -> list[int]:
        """Token ids of `text`, which must be valid Unicode (no lone surrogates).

        `add_special_tokens` adds the model's BOS or EOS if it has the habit; without
        `parse_special`, text that spells a special token is encoded as plain text.
        """
        encoder = self._encoder if parse_special else self._literal_encoder
        # `encode` would hold the interpreter lock: 3 s for a million tokens. The batch call lets
        # go of it, and skips offsets: 1 s.
        return encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool
    ) -> list[tuple[int, int, int]]:
        """(token id, start, stop) of each token; start and stop count characters of `text`.

        The tokens of one split character all span that character; an added token spans nothing.
        """
        (encoding,) = self._encoder.encode_batch([text], add_special_tokens=add_special_tokens)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return [(token_id, start, stop) for token_id, (start, stop) in spans]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a whole answer: special tokens left out, invalid bytes as U+FFFD."""
        parts = [self.token_bytes(i) for i in token_ids if not self.is_special(i)]
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one entry; none for an id without an entry.

        A model's logits may have padding rows beyond the vocabulary, so such ids do occur.
        """
        return self._bytes_by_id[token_id] if 0 <= token_id < len(self._bytes_by_id) else b""

    def token_text(self, token_id: int) -> str:
        """One entry decoded alone; a piece of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token steers the model and is no part of a text; all EOS tokens are."""
        return token_id in self._special_ids

    @cached_property
    def fingerprint(self) -> str:
        """Of what every id means: 23 ms for 49,000 entries, once, when it is first asked."""
        table = hashlib.blake2b(digest_size=16)
        for token_id, entry in enumerate(self._bytes_by_id):
            table.update(b"%d %d " % (len(entry), token_id in self._special_ids))
            table.update(entry)
        return table.hexdigest()

    @cached_property
    def _literal_encoder(self) -> tokenizers.Tokenizer:
        copy = tokenizers.Tokenizer.from_str(self._encoder.to_str())
        copy.encode_special_tokens = True
        return copy

    def _turn_end(self, specials: dict[int, str]) -> frozenset[int]:
        """The special token that the chat template ends an assistant's turn with, if it does."""
        if self.chat_template is None:
            return frozenset()
        tail = self.chat_template.text_after_reply().lstrip()
        ends = [token_id for token_id, text in specials.items() if tail.startswith(text)]
        return frozenset(sorted(ends, key=lambda token_id: len(specials[token_id]))[-1:])


def _bytes_by_id(files: TokenizerFiles) -> list[bytes]:
    added = files.encoder.get_added_tokens_decoder()
    vocabulary = files.encoder.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, token_id in vocabulary.items():
        if files.is_sentencepiece:
            table[token_id] = piece_bytes(text)
        else:  # added tokens are stored as plain text, all others in the byte alphabet
            table[token_id] = text.encode() if token_id in added else _entry_bytes(text)
    return table


def _entry_bytes(text: str) -> bytes:
    try:
        return text.translate(_BYTE_OF_CHARACTER).encode("latin-1")
    except UnicodeEncodeError:  # not written in the byte alphabet: the entry is its own text
        return text.encode()


def _byte_alphabet() -> dict[int, int]:
    """Code point -> byte of GPT-2's byte alphabet, as `str.translate` takes it.

    Bytes that print stand for themselves, the others for the code points from 256 on. Code points
    below 256 that stand for no byte map out of Latin-1.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printing]
    alphabet = {byte: byte if byte in printing else 0xFFFF for byte in range(256)}
    return alphabet | {256 + i: byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()
