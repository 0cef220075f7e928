"""What a token says, once its signature was found right: for whom it speaks, and if it may. Pure.

Time is an argument, which is why the library's own clock is off. Sources: RFC 7519, section 4.1,
and RFC 8725.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import jwt
from jwt.types import Options

from gateway.config import ClaimPath, OidcSettings
from gateway.errors import Forbidden, Unauthenticated
from gateway.tenancy.oidc.jwks import ALGORITHMS, SigningKey

LEEWAY_S = 30.0
"""How far the provider's clock may be ahead of ours."""

_LAST_S = 253_402_300_800  # the year 10,000: what is behind it is in other units, or nonsense

_CHECKED_THERE: Options = {
    "require": ["iss", "aud", "sub", "exp"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What is read from a token."""

    subject: str
    tenant: str  # a name that nobody has looked up yet
    plan: str | None  # None: the tenant's


def kid_of(token: str) -> str:
    """Which key a token says it is signed with. Nothing that it says is to be believed yet.

    Raises:
        Unauthenticated: it is no signed JWT, or by an algorithm that is not taken.
    """
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise Unauthenticated(
            "The token sent is no signed JWT that can be read; copy it once more."
        ) from None
    if header.get("alg") not in ALGORITHMS:
        raise Unauthenticated(
            "The token is not signed, or by an algorithm that is not taken; have the identity "
            f"provider use one of {', '.join(ALGORITHMS)}."
        )
    kid = header.get("kid")
    if not isinstance(kid, str):
        raise Unauthenticated(
            "The token does not name its key; have the identity provider write a 'kid'."
        )
    return kid


def read_claims(token: str, key: SigningKey, settings: OidcSettings, *, now_s: float) -> Claims:
    """What a token says, if all of it holds.

    Raises:
        Unauthenticated: it was not signed with this key, or opens nothing here and now.
        Forbidden: its plan is to be taken from it, and is not in it.
    """
    try:
        claims = jwt.decode(
            token,
            key.public,
            algorithms=key.algorithms,
            audience=settings.audience,
            issuer=settings.issuer,
            options=_CHECKED_THERE,
        )
    except jwt.PyJWTError as error:
        raise Unauthenticated(_why(error, settings)) from None
    _check_times(claims, now_s)
    return Claims(
        subject=_text(claims, ClaimPath("sub")),
        tenant=_text(claims, settings.tenant_claim),
        plan=_plan(claims, settings.plan_claim),
    )


def _why(error: jwt.PyJWTError, settings: OidcSettings) -> str:
    match error:
        case jwt.MissingRequiredClaimError():
            return f"The token has no claim '{error.claim}'; have the identity provider write it."
        case jwt.InvalidAudienceError():
            return (
                f"The token's audience is not '{settings.audience}'; ask the identity provider for "
                "one that has it."
            )
        case jwt.InvalidIssuerError():
            return f"The token's issuer is not '{settings.issuer}'; get one from there."
        case jwt.InvalidAlgorithmError() | jwt.InvalidKeyError():
            return "The token is signed by another algorithm than its key is for; get a new token."
        case jwt.InvalidSignatureError():
            return "The token's signature is wrong; get a new token."
        case _:
            return "The token holds no claims that can be read; get a new token."


def _check_times(claims: Mapping[str, Any], now_s: float) -> None:
    if _time_s(claims, "exp") <= now_s:
        raise Unauthenticated("The token has expired; get a new one from the identity provider.")
    for name in ("nbf", "iat"):
        if name in claims and _time_s(claims, name) > now_s + LEEWAY_S:
            raise Unauthenticated(
                f"The token is not valid yet, by its '{name}'; use it later, or set clocks right."
            )


def _time_s(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LAST_S:
        raise Unauthenticated(f"The token's '{name}' is no time in Unix seconds; get a new token.")
    return value


def _plan(claims: Mapping[str, Any], path: ClaimPath | None) -> str | None:
    if path is None:
        return None
    try:
        return _text(claims, path)
    except Unauthenticated as error:
        raise Forbidden(error.message) from None


def _text(claims: Mapping[str, Any], path: ClaimPath) -> str:
    found: object = claims
    for name in path.names:
        is_object = isinstance(found, Mapping)
        found = cast("Mapping[str, object]", found).get(name) if is_object else None
    if not (isinstance(found, str) and found and found.isprintable()):
        raise Unauthenticated(
            f"The token has no text as its claim '{path}'; have the identity provider write it."
        )
    return found
