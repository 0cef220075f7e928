"""Names for the contents of KV blocks: a hash chain over a sequence's tokens.

What a block holds depends on every token before it, so block i is named by h_i = H(h_(i-1) || its
tokens), and h_(-1) is a root made of the model and a salt. Sequences under different salts have no
name in common, so they share no block, and none can find out what another has asked.

H is BLAKE2b cut to 128 bits (RFC 7693). That two of a million blocks collide by chance has a
probability of 2^-89, and to make a block of another salt's name takes some 2^128 attempts, so
whoever finds a name need not compare the tokens behind it. Knows no blocks and no tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16
_VERSION = b"v1"


def root_hash(model: str, salt: str) -> bytes:
    """Of a sequence's first 0 blocks. The length keeps model and salt apart."""
    named = model.encode()
    digest = blake2b(_VERSION, digest_size=DIGEST_BYTES, person=b"root")
    digest.update(len(named).to_bytes(8, "little") + named + salt.encode())
    return digest.digest()


def extend_hashes(
    hashes: list[bytes], token_ids: Sequence[int], *, block_size: int, num_blocks: int
) -> None:
    """Append to `hashes`, those of the first 0, 1, 2, ... blocks of `token_ids`, up to
    `num_blocks`.

    1.4 us a block of 16 tokens.
    """
    parent = hashes[-1]
    for block in range(len(hashes) - 1, num_blocks):
        start = block * block_size
        tokens = array("q", token_ids[start : start + block_size]).tobytes()
        parent = blake2b(parent + tokens, digest_size=DIGEST_BYTES, person=b"block").digest()
        hashes.append(parent)
