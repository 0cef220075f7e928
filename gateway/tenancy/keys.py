"""API keys as text: how they are made, recognised, hashed, and read from a request's headers.

A key is `to_live_` (a tenant's) or `to_admin_` (an operator's), 30 random base62 characters (178
bits) and 6 that spell the CRC32 of all before them, so that a mistyped key is refused without a
look-up and a leaked one is found by its form. With that much randomness one HMAC is enough; a slow
password hash would only slow us. Keys are looked up by digest and never compared, hence timing
tells nothing. Knows no database.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from collections.abc import Sequence

from gateway.errors import Unauthenticated

PREFIX = "to_live_"
ADMIN_PREFIX = "to_admin_"
ENTROPY_BYTES = 32  # 256 bits for 178: what the modulo favours is less than 2**-77

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_CHARS = 30
_CHECK_CHARS = 6  # 62**6 > 2**32
_FORM = re.compile(rf"[0-9A-Za-z]{{{_RANDOM_CHARS + _CHECK_CHARS}}}", re.ASCII)

_MAX_HEADER_BYTES = 256  # ours are 52 with the scheme at most; nothing longer is worth a look
_BEARER = re.compile(rb"bearer ([!-~]+)", re.IGNORECASE)
_VISIBLE = re.compile(rb"[!-~]+")

HOW_TO_SEND = "send it as 'Authorization: Bearer <key>' or 'x-api-key: <key>'"


def mint(entropy: bytes, prefix: str = PREFIX) -> str:
    """A new key out of at least `ENTROPY_BYTES` random bytes."""
    if len(entropy) < ENTROPY_BYTES:
        raise ValueError(f"a key needs {ENTROPY_BYTES} random bytes, not {len(entropy)}")
    body = prefix + _base62(int.from_bytes(entropy), _RANDOM_CHARS)
    return body + _checksum(body)


def well_formed(secret: str, prefix: str = PREFIX) -> bool:
    """Whether this can be such a key at all; says nothing of whether it was ever issued."""
    if not secret.startswith(prefix) or not _FORM.fullmatch(secret, len(prefix)):
        return False
    return secret[-_CHECK_CHARS:] == _checksum(secret[:-_CHECK_CHARS])


def check_form(secret: str, prefix: str = PREFIX) -> None:
    """See that this can be a key of the kind that `prefix` says.

    Raises:
        Unauthenticated: it cannot, or is of the other kind.
    """
    if well_formed(secret, prefix):
        return
    if prefix == PREFIX and secret.startswith(ADMIN_PREFIX):
        raise Unauthenticated("An admin key opens only /admin; send a tenant's key here.")
    if prefix == ADMIN_PREFIX and secret.startswith(PREFIX):
        raise Unauthenticated(
            "A tenant's key does not open /admin; send an admin key, which the operator issues "
            "with 'turnout admin-keys create'."
        )
    raise Unauthenticated("The API key sent is not a whole key; copy it once more.")


def digest(secret: str, pepper: bytes) -> bytes:
    """What is stored of a key: 32 bytes that are useless without the pepper.

    Source: HMAC-SHA-256, RFC 2104.
    """
    return hmac.digest(pepper, secret.encode(), hashlib.sha256)


def hint(secret: str) -> str:
    """Enough to recognise one's own key by: the prefix, the first 4 characters and the last 4."""
    return f"{secret[: secret.rindex('_') + 5]}…{secret[-4:]}"


def bearer(authorization: Sequence[bytes], x_api_key: Sequence[bytes]) -> str:
    """The key a request presents, given all values of the two headers as they came in.

    The scheme's case does not matter; everything else is exact: one header, one space, visible
    ASCII. Messages never repeat what was sent.

    Raises:
        Unauthenticated: nothing was sent, or nothing that can be read; `missing` is set.
    """
    values = [*authorization, *x_api_key]
    if not values:
        raise Unauthenticated(f"No API key was sent; {HOW_TO_SEND}.", missing=True)
    if len(values) > 1:
        raise Unauthenticated(
            f"{len(values)} credentials were sent; {HOW_TO_SEND}, once.", missing=True
        )
    (value,) = values
    if len(value) > _MAX_HEADER_BYTES:
        raise Unauthenticated(
            f"The API key is {len(value)} bytes long, which no key is; {HOW_TO_SEND}.",
            missing=True,
        )
    if authorization:
        match = _BEARER.fullmatch(value)
        key = match[1] if match else b""
    else:
        key = value if _VISIBLE.fullmatch(value) else b""
    if not key:
        header = "Authorization" if authorization else "x-api-key"
        raise Unauthenticated(f"The {header} header holds no key; {HOW_TO_SEND}.", missing=True)
    return key.decode("ascii")


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECK_CHARS)


def _base62(number: int, width: int) -> str:
    """The last `width` digits, with leading zeros."""
    digits: list[str] = []
    for _ in range(width):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
