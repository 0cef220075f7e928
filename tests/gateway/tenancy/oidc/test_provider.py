"""Fetching keys from a real server: where they are, and what is not put up with."""

from __future__ import annotations

import datetime
import gzip
import ipaddress
import json
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.config import OidcSettings
from gateway.tenancy.oidc.provider import MAX_BYTES, Provider, ProviderError
from tests.identity_provider import (
    AUDIENCE,
    KEYS,
    METADATA,
    IdentityProvider,
    identity_provider,
    key_of,
)


async def refusal(settings: OidcSettings, *, timeout_s: float = 10.0) -> str:
    with pytest.raises(ProviderError) as caught:
        await Provider(settings, timeout_s=timeout_s).fetch()
    return str(caught.value)


async def test_keys_are_found_by_the_issuers_metadata(
    provider: IdentityProvider, settings: OidcSettings
) -> None:
    found = await Provider(settings).fetch()
    assert list(found.keys) == ["first"]
    assert provider.asked == [METADATA, KEYS]


async def test_an_issuer_with_a_path_has_its_metadata_below_it(provider: IdentityProvider) -> None:
    """A slash at its end belongs to the issuer, and not to that path."""
    for realm in ("/realms/acme", "/realms/other/"):
        issuer = provider.issuer + realm
        at = f"{realm.rstrip('/')}{METADATA}"
        metadata = {"issuer": issuer, "jwks_uri": provider.issuer + KEYS}
        provider.documents[at] = json.dumps(metadata).encode()
        assert (await Provider(OidcSettings(issuer=issuer, audience=AUDIENCE)).fetch()).keys
        assert provider.asked[-2:] == [at, KEYS]


async def test_a_url_of_the_keys_needs_no_metadata(
    provider: IdentityProvider, settings: OidcSettings
) -> None:
    provider.documents["/elsewhere?p=1"] = provider.document(KEYS) or b""
    settings = replace(settings, jwks_url=f"{provider.issuer}/elsewhere?p=1")
    assert list((await Provider(settings).fetch()).keys) == ["first"]
    assert provider.asked == ["/elsewhere?p=1"]


@pytest.mark.parametrize(
    ("issuer", "jwks_uri", "why"),
    [
        ("{issuer}/", "{issuer}/keys", "is of the issuer 'http://127.0.0.1:[0-9]+/', not"),
        ("https://evil.example", "{issuer}/keys", "is of the issuer 'https://evil.example'"),
        ("{issuer}", "http://idp.example/keys", "must be an https:// URL"),
        ("{issuer}", "file:///etc/passwd", "must be an https:// URL"),
        ("{issuer}", "https://a:b@idp.example/", "without a user"),
        ("{issuer}", 5, "jwks_uri: Input should be a valid string"),
        (None, "{issuer}/keys", "issuer: Input should be a valid string"),
    ],
)
async def test_metadata_that_are_not_the_issuers_own_are_refused(
    provider: IdentityProvider,
    settings: OidcSettings,
    issuer: str | None,
    jwks_uri: str | int,
    why: str,
) -> None:
    document = json.dumps({"issuer": issuer, "jwks_uri": jwks_uri})
    provider.documents[METADATA] = document.replace("{issuer}", provider.issuer).encode()
    with pytest.raises(ProviderError, match=why):
        await Provider(settings).fetch()
    assert KEYS not in provider.asked


async def test_a_redirect_is_not_followed(
    provider: IdentityProvider, settings: OidcSettings
) -> None:
    provider.fail_with = 302
    provider.headers["location"] = provider.issuer + KEYS
    assert f"{METADATA} answered with HTTP status 302" in await refusal(settings)
    assert provider.asked == [METADATA]


@pytest.mark.parametrize("status", [204, 404, 500])
async def test_any_other_status_is_an_error(
    provider: IdentityProvider, settings: OidcSettings, status: int
) -> None:
    provider.fail_with = status
    assert f"HTTP status {status}" in await refusal(settings)


async def test_a_silent_provider_is_not_waited_for(
    provider: IdentityProvider, settings: OidcSettings
) -> None:
    provider.answers.clear()
    assert "did not answer within 0.05 s" in await refusal(settings, timeout_s=0.05)


async def test_a_document_is_read_up_to_a_size(
    provider: IdentityProvider, settings: OidcSettings
) -> None:
    document = provider.document(KEYS) or b""
    provider.documents[KEYS] = document + b" " * (MAX_BYTES - len(document))
    assert (await Provider(settings).fetch()).keys
    provider.documents[KEYS] += b" "
    assert f"more than {MAX_BYTES} bytes" in await refusal(settings)


async def test_a_document_that_was_not_asked_for_compressed_is_not_unpacked(
    provider: IdentityProvider, settings: OidcSettings
) -> None:
    provider.headers["content-encoding"] = "gzip"
    provider.documents[METADATA] = gzip.compress(b" " * 10 * MAX_BYTES)
    assert "holds no metadata" in await refusal(settings)


async def test_what_holds_no_keys_is_named(
    provider: IdentityProvider, settings: OidcSettings
) -> None:
    provider.documents[KEYS] = b"<html>"
    assert f"{KEYS} holds no key set that can be used: Invalid JSON" in await refusal(settings)
    provider.documents[METADATA] = b"<html>"
    assert "set TURNOUT_OIDC_JWKS_URL" in await refusal(settings)


async def test_a_provider_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = OidcSettings(issuer="http://127.0.0.1:1", audience=AUDIENCE)
    assert "127.0.0.1:1/.well-known/openid-configuration cannot be read" in await refusal(settings)


async def test_no_proxy_of_the_environment_is_used(
    settings: OidcSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert (await Provider(settings).fetch()).keys


async def test_certificates_are_checked_with_the_systems_or_those_of_ssl_cert_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, private_key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, private_key)
    with identity_provider(tls) as provider:
        provider.rotate(key_of("EdDSA"))
        settings = OidcSettings(issuer=provider.issuer, audience=AUDIENCE)
        assert "CERTIFICATE_VERIFY_FAILED" in await refusal(settings)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert (await Provider(settings).fetch()).keys


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths
