"""A provider's key set, from its bytes to keys that can check signatures. Pure.

Only public keys of asymmetric algorithms come out, each with the algorithms that may be used with
it: a token's own `alg` chooses among these and no others (RFC 8725, section 3.1). Sources: RFC 7517
and 7518. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from jwt import PyJWK, PyJWTError
from jwt.algorithms import AllowedPublicKeys
from pydantic import BaseModel, ConfigDict, Field, ValidationError

_ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC P-256": ("ES256",),
    "EC P-384": ("ES384",),
    "EC P-521": ("ES512",),
    "OKP Ed25519": ("EdDSA",),
    "OKP Ed448": ("EdDSA",),
}
"""By type and curve of a key."""

ALGORITHMS = tuple(dict.fromkeys(name for names in _ALGORITHMS.values() for name in names))
"""All that a token may be signed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key that tokens may be signed with."""

    kid: str
    algorithms: tuple[str, ...]
    public: AllowedPublicKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySet:
    """What a provider publishes: the keys by their `kid`, and why others are of no use."""

    keys: Mapping[str, SigningKey]
    ignored: tuple[str, ...]


class _Jwks(BaseModel):
    model_config = ConfigDict(strict=True)

    keys: list[dict[str, Any]]


class _Jwk(BaseModel):
    """What says how a key is to be used; its numbers are for the library to read."""

    model_config = ConfigDict(strict=True)

    kty: str
    kid: str = Field(min_length=1)
    crv: str = ""
    use: str = "sig"
    key_ops: list[str] = ["verify"]
    alg: str | None = None


class _Unusable(Exception):
    """A key that no token's signature is checked with; the message says why."""


def parse_key_set(document: bytes) -> KeySet:
    """The key set that a document holds.

    Raises:
        ValueError: it is none, or no key in it can be used; the message says so.
    """
    try:
        entries = _Jwks.model_validate_json(document).keys
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    keys: dict[str, SigningKey] = {}
    ignored: list[str] = []
    for entry in entries:
        try:
            key = _parse_key(entry)
            if key.kid in keys:
                raise _Unusable("its 'kid' is another's")
            keys[key.kid] = key
        except _Unusable as why:
            ignored.append(f"{entry.get('kid')!r:.60}: {why!s:.200}")
    if not keys:
        raise ValueError(f"none of its {len(entries)} keys can be used ({'; '.join(ignored)})")
    return KeySet(keys=keys, ignored=tuple(ignored))


def first_problem(error: ValidationError) -> str:
    """What is wrong with a document, without what stands there."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def _parse_key(entry: dict[str, Any]) -> SigningKey:
    """Raises: _Unusable."""
    try:
        said = _Jwk.model_validate(entry)
    except ValidationError as error:
        raise _Unusable(first_problem(error)) from None
    if said.use != "sig" or "verify" not in said.key_ops:
        raise _Unusable(f"it is for {said.use!r} {said.key_ops!r}, not for signatures")
    if "d" in entry:
        raise _Unusable("it is a private key, with which anybody can sign")
    algorithms = _algorithms_of(said)
    try:
        key = PyJWK.from_dict(entry, algorithms[0])
    except (PyJWTError, UnsupportedAlgorithm) as error:  # the latter by OpenSSL, as it was built
        raise _Unusable(str(error)) from None
    if too_short := key.Algorithm.check_key_length(key.key):
        raise _Unusable(too_short)
    return SigningKey(kid=said.kid, algorithms=algorithms, public=key.key)


def _algorithms_of(said: _Jwk) -> tuple[str, ...]:
    """Those that fit the key; the one it names, if it does. Raises: _Unusable."""
    kind = f"{said.kty} {said.crv}".strip()
    fitting = _ALGORITHMS.get(kind, ())
    algorithms = tuple(name for name in fitting if said.alg in (None, name))
    if not algorithms:
        raise _Unusable(f"keys of the type {kind} are not used with {said.alg or 'any algorithm'}")
    return algorithms
