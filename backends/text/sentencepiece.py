"""Sentencepiece vocabularies of the BPE kind, rebuilt from pieces and scores.

Text is written with "▁" for its spaces and cut into characters; then, over and over, the two
neighbours whose union has the best score become one piece. A character that is no piece falls back
to its bytes, pieces named <0x00> to <0xFF>. That is byte-pair encoding with merges in the order of
scores, which is how it is built here. Knows no file.

Source: Kudo and Richardson, "SentencePiece", 2018.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers

SPACE = "▁"  # U+2581
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def build_encoder(
    vocabulary: Mapping[str, int],
    scores: Mapping[str, float],
    *,
    unknown: str | None,
    add_space_prefix: bool,
) -> tokenizers.Tokenizer:
    """vocabulary: piece -> id, all of them; scores: those of the pieces that text is merged into.

    add_space_prefix: a text, and what follows a special token, begins with a space of its own.

    Raises:
        Exception: of no finer type, from `tokenizers`, if it does not take the vocabulary.
    """
    ranked = sorted(scores, key=lambda piece: -scores[piece])
    model = models.BPE(
        vocab=dict(vocabulary),
        merges=[pair for piece in ranked for pair in _cuts(piece, vocabulary, scores)],
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    encoder = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    encoder.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if add_space_prefix else spaces
    )
    encoder.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return encoder


def _cuts(
    piece: str, vocabulary: Mapping[str, int], scores: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    """Every pair of pieces that makes this one, in the order of their ids."""
    pairs: Sequence[tuple[str, str]] = [
        (piece[:cut], piece[cut:])
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    yield from sorted(pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))


def decodes_pieces(decoder: decoders.Decoder | None) -> bool:
    """Whether it reads pieces, by trying: "▁" as a space, <0x21> as a byte."""
    return decoder is not None and decoder.decode(["a", f"{SPACE}b", "<0x21>"]) == "a b!"


def piece_bytes(piece: str) -> bytes:
    """What a piece stands for. The first of an answer keeps its space: it continues a prompt."""
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()
