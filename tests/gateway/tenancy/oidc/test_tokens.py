"""For whom a token speaks, and every reason why it opens nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.config import ClaimPath, OidcSettings
from gateway.errors import Forbidden, Unauthenticated
from gateway.tenancy.database import Directory
from gateway.tenancy.key_rules import KeyScope
from gateway.tenancy.oidc.claims import LEEWAY_S
from gateway.tenancy.oidc.key_ring import KeyRing
from gateway.tenancy.oidc.provider import Provider
from gateway.tenancy.oidc.tokens import MAX_TOKEN_BYTES, TokenCheck, token_of
from gateway.tenancy.tenants import Principal
from tests.clock import FakeClock
from tests.identity_provider import AUDIENCE, SUBJECT, IdentityProvider, key_of

NOW_S = 1_800_000_000.0
PLANS = ("free", "pro")


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Directory]:
    directory = await Directory.open(tmp_path)
    await directory.create_tenant("acme", plan="free")
    yield directory
    await directory.aclose()


@pytest.fixture
def check(settings: OidcSettings, directory: Directory) -> TokenCheck:
    return check_by(settings, directory)


def check_by(settings: OidcSettings, directory: Directory) -> TokenCheck:
    ring = KeyRing(Provider(settings, timeout_s=30.0).fetch, clock=FakeClock())
    return TokenCheck(settings, ring, directory, PLANS)


def token_by(provider: IdentityProvider, **changes: Any) -> str:
    return provider.token(now_s=NOW_S, **changes)


async def open_with(check: TokenCheck, token: str, *, now_s: float = NOW_S) -> Principal:
    return await check.authenticate(token, now_s=now_s)


async def refuses(
    check: TokenCheck, token: str, match: str, *, now_s: float = NOW_S
) -> Unauthenticated:
    with pytest.raises(Unauthenticated, match=match) as caught:
        await open_with(check, token, now_s=now_s)
    assert not caught.value.missing
    for secret in (*filter(None, token.split(".")), SUBJECT):
        assert secret not in caught.value.message
    return caught.value


async def test_a_token_speaks_for_the_tenant_in_it(
    provider: IdentityProvider, check: TokenCheck, directory: Directory
) -> None:
    """By a name that is its subject's alone, and does not tell who that is."""
    principal = await open_with(check, token_by(provider))
    assert principal.tenant == await directory.tenant("acme")
    assert principal.rules.scopes == {KeyScope.INFERENCE}
    assert principal.rules.models == ("*",)
    kind, _, who = principal.key_id.partition(":")
    assert (kind, len(who)) == ("oidc", 16)
    assert who not in hashlib.sha256(f"{provider.issuer}\n{SUBJECT}".encode()).hexdigest()
    again = await open_with(check, token_by(provider, jti="another"))
    other = await open_with(check, token_by(provider, sub="another"))
    assert again.key_id == principal.key_id != other.key_id


@pytest.mark.parametrize(
    "algorithm",
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"],
)
async def test_every_asymmetric_algorithm_is_taken(
    provider: IdentityProvider, check: TokenCheck, algorithm: str
) -> None:
    kind = "RS256" if algorithm[0] in "RP" else algorithm
    provider.rotate(replace(key_of(kind), algorithm=algorithm))
    assert (await open_with(check, token_by(provider))).tenant.name == "acme"


# What is not signed as it must be


def unsigned(token: str, **header: object) -> str:
    """The same claims under another header, and without a signature."""
    first = base64.urlsafe_b64encode(json.dumps({"kid": "first", **header}).encode()).rstrip(b"=")
    return f"{first.decode()}.{token.split('.')[1]}."


@pytest.mark.parametrize("name", ["none", "None", "NONE", "", None, 5, ["ES256"]])
async def test_a_token_without_a_signature_is_refused(
    provider: IdentityProvider, check: TokenCheck, name: object
) -> None:
    await refuses(check, unsigned(token_by(provider), alg=name), "not signed, or by an algorithm")
    await refuses(check, unsigned(token_by(provider)), "not signed, or by an algorithm")
    assert not provider.asked


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_public_key_is_no_shared_secret(
    provider: IdentityProvider, check: TokenCheck, algorithm: str
) -> None:
    """CVE-2015-9235: everybody has the public key, so a HMAC with it proves nothing."""
    key = key_of("RS256")
    provider.rotate(key)
    public = key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = unsigned(token_by(provider), alg=algorithm, typ="JWT").rstrip(".")
    mac = hmac.digest(public, parts.encode(), f"sha{algorithm[2:]}")
    forged = f"{parts}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    await refuses(check, forged, "not signed, or by an algorithm")


async def test_a_key_is_used_for_its_own_algorithm_alone(
    provider: IdentityProvider, check: TokenCheck
) -> None:
    provider.rotate(key_of("RS256"))
    await open_with(check, token_by(provider))
    await refuses(check, token_by(provider, algorithm="PS256"), "another algorithm than its key")
    stolen_name = token_by(provider, key=key_of("ES256"))
    await refuses(check, stolen_name, "another algorithm than its key")


async def test_a_stranger_who_takes_a_keys_name_has_not_its_signature(
    provider: IdentityProvider, check: TokenCheck
) -> None:
    stranger = replace(key_of("ES256", "stranger"), kid="first")
    await refuses(check, token_by(provider, key=stranger), "signature is wrong")


async def test_claims_that_were_changed_are_not_believed(
    provider: IdentityProvider, check: TokenCheck
) -> None:
    good, other = token_by(provider).split("."), token_by(provider, tenant="other").split(".")
    await refuses(check, ".".join([good[0], other[1], good[2]]), "signature is wrong")


@pytest.mark.parametrize("header", [{"jwk": key_of("ES256").jwk()}, {"x5u": "https://a"}])
async def test_a_token_brings_no_key_of_its_own(
    provider: IdentityProvider, check: TokenCheck, header: dict[str, Any]
) -> None:
    """RFC 8725, section 3.10."""
    stranger = key_of("ES256", "stranger")
    header |= {"jku": f"{provider.issuer}/stranger"}
    await refuses(check, token_by(provider, key=stranger, header=header), "does not publish")
    assert "/stranger" not in provider.asked


async def test_an_extension_that_must_be_understood_is_not(
    provider: IdentityProvider, check: TokenCheck
) -> None:
    token = token_by(provider, header={"crit": ["https://acme.example/x"]})
    await refuses(check, token, "no signed JWT that can be read")


@pytest.mark.parametrize(
    "token",
    [
        "eyJ",
        "eyJhbGciOiJFUzI1NiJ9",
        "eyJhbGciOiJFUzI1NiJ9.e30",
        "eyJhbGciOiJSU0EtT0FFUCJ9.CANARY.CANARY.CANARY.CANARY",
        "eyJ!.e30.CANARY",
        "eyJhbGciOiJFUzI1NiIsImtpZCI6NX0.e30.CANARY",
    ],
)
async def test_what_is_no_signed_token_is_refused(check: TokenCheck, token: str) -> None:
    await refuses(check, token, "no signed JWT that can be read")


async def test_a_token_names_its_key(provider: IdentityProvider, check: TokenCheck) -> None:
    key = provider.keys[0]
    token = jwt.encode({"sub": "x"}, key.private, key.algorithm)
    await refuses(check, token, "does not name its key")


async def test_a_token_is_as_long_as_a_header_may_be(
    provider: IdentityProvider, check: TokenCheck
) -> None:
    token = token_by(provider, padding="x" * MAX_TOKEN_BYTES)
    await refuses(check, token, f"{MAX_TOKEN_BYTES} is the most")


# What a token must say


@pytest.mark.parametrize("claim", ["iss", "aud", "sub", "exp"])
async def test_what_must_be_in_a_token_is_named(
    provider: IdentityProvider, check: TokenCheck, claim: str
) -> None:
    await refuses(check, token_by(provider, **{claim: None}), f"no claim '{claim}'")


@pytest.mark.parametrize("issuer", ["https://evil.example", "{issuer}/", "{issuer}x", ["{issuer}"]])
async def test_another_issuer_is_refused_to_the_letter(
    provider: IdentityProvider, check: TokenCheck, issuer: Any
) -> None:
    if isinstance(issuer, list):  # which a library may be too careful to sign
        claims = {"iss": [provider.issuer], "aud": AUDIENCE, "sub": "x", "exp": NOW_S + 1}
        key = provider.keys[0]
        payload = json.dumps(claims).encode()
        token = jwt.PyJWS().encode(payload, key.private, key.algorithm, headers={"kid": key.kid})
    else:
        token = token_by(provider, iss=issuer.replace("{issuer}", provider.issuer))
    await refuses(check, token, "issuer is not")


@pytest.mark.parametrize("audience", ["other", "Turnout", "turnout ", ["other"], [5], {"a": 1}])
async def test_another_audience_is_refused_to_the_letter(
    provider: IdentityProvider, check: TokenCheck, audience: object
) -> None:
    await refuses(check, token_by(provider, aud=audience), "audience is not 'turnout'")


async def test_one_of_several_audiences_is_enough(
    provider: IdentityProvider, check: TokenCheck
) -> None:
    await open_with(check, token_by(provider, aud=["account", AUDIENCE]))


async def test_a_token_ends_to_the_second(provider: IdentityProvider, check: TokenCheck) -> None:
    token = token_by(provider, exp=int(NOW_S) + 60)
    await open_with(check, token, now_s=NOW_S + 59.9)
    await refuses(check, token, "The token has expired", now_s=NOW_S + 60.0)


@pytest.mark.parametrize("claim", ["nbf", "iat"])
async def test_a_token_from_the_future_is_taken_by_a_little(
    provider: IdentityProvider, check: TokenCheck, claim: str
) -> None:
    await open_with(check, token_by(provider, **{claim: NOW_S + LEEWAY_S}))
    await refuses(
        check,
        token_by(provider, **{claim: NOW_S + LEEWAY_S + 1}),
        f"not valid yet, by its '{claim}'",
    )


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize(
    "value", ["1800000000", True, float("inf"), float("nan"), -1, NOW_S * 1000, 10**400, [NOW_S]]
)
async def test_what_is_no_time_is_refused(
    provider: IdentityProvider, check: TokenCheck, claim: str, value: object
) -> None:
    await refuses(check, token_by(provider, **{claim: value}), f"'{claim}' is no time")


@pytest.mark.parametrize("subject", ["", 5, ["x"], "\ud800", "a\nb"])
async def test_a_subject_is_a_text(
    provider: IdentityProvider, check: TokenCheck, subject: Any
) -> None:
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": subject, "exp": NOW_S + 1}
    key = provider.keys[0]
    payload = json.dumps(claims).encode()
    token = jwt.PyJWS().encode(payload, key.private, key.algorithm, headers={"kid": key.kid})
    await refuses(check, token, "no text as its claim 'sub'|no claims that can be read")


# For which tenant


@pytest.mark.parametrize(
    ("path", "claims"),
    [
        ("org", {"org": "acme"}),
        ("org.team.name", {"org": {"team": {"name": "acme"}}}),
        ("https://acme.example/tenant.name", {"https://acme.example/tenant.name": "acme"}),
        ("urn:acme.example:tenant", {"urn:acme.example:tenant": "acme"}),
    ],
)
async def test_the_tenant_is_where_the_operator_says(
    provider: IdentityProvider,
    settings: OidcSettings,
    directory: Directory,
    path: str,
    claims: dict[str, Any],
) -> None:
    check = check_by(replace(settings, tenant_claim=ClaimPath(path)), directory)
    principal = await open_with(check, token_by(provider, **{"tenant": None, **claims}))
    assert principal.tenant.name == "acme"
    await refuses(check, token_by(provider), f"no text as its claim '{path}'")


@pytest.mark.parametrize("value", [None, "", 5, True, ["acme"], {"name": "acme"}, "ac\nme"])
async def test_a_tenant_is_a_text(
    provider: IdentityProvider, check: TokenCheck, value: object
) -> None:
    await refuses(check, token_by(provider, tenant=value), "no text as its claim 'tenant'")


@pytest.mark.parametrize("value", ["nobody", "Acme", " acme", "acme' OR 1=1 --", "*", "a" * 200])
async def test_a_tenant_that_is_not_here_opens_nothing(
    provider: IdentityProvider, check: TokenCheck, directory: Directory, value: str
) -> None:
    refusal = await refuses(check, token_by(provider, tenant=value), "is no tenant here")
    assert len(refusal.message) < 120
    assert len(await directory.tenants()) == 1


async def test_a_tenant_that_was_disabled_is_seen_at_once(
    provider: IdentityProvider, check: TokenCheck, directory: Directory
) -> None:
    token = token_by(provider)
    await open_with(check, token)
    await directory.disable_tenant("acme", now_s=NOW_S)
    await refuses(check, token, "Tenant 'acme' is disabled")
    await directory.enable_tenant("acme")
    await open_with(check, token)


# On which plan


@pytest.fixture
def planned(settings: OidcSettings, directory: Directory) -> TokenCheck:
    return check_by(replace(settings, plan_claim=ClaimPath("tier")), directory)


async def test_without_a_claim_for_it_the_plan_is_the_tenants(
    provider: IdentityProvider, check: TokenCheck
) -> None:
    assert (await open_with(check, token_by(provider, tier="pro"))).tenant.plan == "free"


async def test_the_plan_is_the_tokens_if_the_operator_says_so(
    provider: IdentityProvider, planned: TokenCheck, directory: Directory
) -> None:
    principal = await open_with(planned, token_by(provider, tier="pro"))
    assert principal.tenant == replace(await directory.tenant("acme"), plan="pro")


@pytest.mark.parametrize("value", [None, "", "gold", "Pro", 5, ["pro"]])
async def test_an_unknown_plan_is_never_another_one(
    provider: IdentityProvider, planned: TokenCheck, value: object
) -> None:
    with pytest.raises(Forbidden, match=r"plan 'gold'|plan 'Pro'|no text as its claim 'tier'"):
        await open_with(planned, token_by(provider, tier=value))


# What is shown of it


async def test_a_refusal_is_logged_without_the_token_and_the_person(
    provider: IdentityProvider, check: TokenCheck, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = token_by(provider, exp=1)
    await refuses(check, token, "expired")
    assert "refused a token: The token has expired" in caplog.text
    for secret in (*token.split("."), SUBJECT):
        assert secret not in caplog.text


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "token"),
    [
        ([b"Bearer eyJa.b.c"], [], "eyJa.b.c"),
        ([b"bearer eyJ"], [], "eyJ"),
        ([b"Bearer EYJa.b.c"], [], None),
        ([b"Bearer  eyJa.b.c"], [], None),
        ([b"Bearer eyJa.b.c "], [], None),
        ([b"Bearer eyJa.b.\xff"], [], None),
        ([b"Bearer to_live_eyJ"], [], None),
        ([b"Basic eyJa.b.c"], [], None),
        ([b"eyJa.b.c"], [], None),
        ([b"Bearer eyJa.b.c"] * 2, [], None),
        ([b"Bearer eyJa.b.c"], [b"x"], None),
        ([], [b"eyJa.b.c"], None),
        ([], [], None),
    ],
)
def test_a_token_is_told_from_a_key_by_its_beginning(
    authorization: list[bytes], x_api_key: list[bytes], token: str | None
) -> None:
    assert token_of(authorization, x_api_key) == token
