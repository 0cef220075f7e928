"""Which published keys are used, for which algorithms, and why others are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.tenancy.oidc.jwks import ALGORITHMS, parse_key_set
from tests.identity_provider import key_of

EC = key_of("ES256")
RSA = key_of("RS256", "second")
OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_a_key_without_an_algorithm_is_for_all_that_fit_it() -> None:
    found = parse_key_set(key_set(RSA.jwk(alg=None, use=None), EC.jwk(alg=None)))
    assert {kid: key.algorithms for kid, key in found.keys.items()} == {
        "second": OF_RSA,
        "first": ("ES256",),
    }
    assert not found.ignored


def test_a_key_that_names_its_algorithm_is_for_no_other() -> None:
    found = parse_key_set(key_set(RSA.jwk(alg="PS384")))
    assert found.keys["second"].algorithms == ("PS384",)


@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "ES512", "EdDSA"])
def test_every_kind_of_key_is_read(algorithm: str) -> None:
    found = parse_key_set(key_set(key_of(algorithm).jwk()))
    assert found.keys["first"].algorithms == (algorithm,)


def test_a_key_of_the_larger_edwards_curve_is_read() -> None:
    jwk = json.loads(
        '{"kty": "OKP", "crv": "Ed448", "kid": "1", "x": '
        '"X9dEm1m0Yf0s54fsYWrUah2hNCSFpw4fig6nXYDpZ3jt8SR2m0bHBhvWeD3x5Q9s0foavq_oJWGA"}'
    )  # RFC 8032, section 7.4
    assert parse_key_set(key_set(jwk)).keys["1"].algorithms == ("EdDSA",)


def test_nothing_symmetric_and_nothing_unsigned_is_taken() -> None:
    assert set(ALGORITHMS) == {*OF_RSA, "ES256", "ES384", "ES512", "EdDSA"}


@pytest.mark.parametrize(
    ("jwk", "why"),
    [
        ({"kty": "oct", "kid": "1", "k": "c2VjcmV0" * 8}, "the type oct are not used"),
        ({"kty": "oct", "kid": "1", "k": "c2VjcmV0" * 8, "alg": "HS256"}, "not used with HS256"),
        (RSA.jwk(use="enc"), "it is for 'enc'"),
        (RSA.jwk(key_ops=["encrypt"]), "not for signatures"),
        (RSA.jwk(key_ops="verify"), "key_ops: Input should be a valid list"),
        (RSA.jwk(alg="HS256"), "RSA are not used with HS256"),
        (RSA.jwk(alg="none"), "RSA are not used with none"),
        (RSA.jwk(alg="ES256"), "RSA are not used with ES256"),
        (RSA.jwk(alg="RSA-OAEP"), "RSA are not used with RSA-OAEP"),
        (EC.jwk(alg="ES384"), "EC P-256 are not used with ES384"),
        (EC.jwk(alg=None, crv="secp256k1"), "EC secp256k1 are not used"),
        (EC.jwk(kty=["EC"]), "kty: Input should be a valid string"),
        (EC.jwk(kid=None), "kid: Field required"),
        (EC.jwk(kid=""), "kid: String should have at least 1 character"),
        (EC.jwk(x="AAAA"), "Coords should be 32 bytes"),
        (EC.jwk(y=None), "Not an Elliptic curve key"),
        (RSA.jwk(n=5), "Unable to construct key"),
        (key_of("RS256", "short", size_bits=1024).jwk(), "1024 bits long"),
        ({**RSA.jwk(), "d": "CANARY"}, "it is a private key"),
    ],
)
def test_a_key_of_no_use_is_left_out_and_told_why(jwk: dict[str, Any], why: str) -> None:
    found = parse_key_set(key_set(key_of("EdDSA", "good").jwk(), jwk))
    assert list(found.keys) == ["good"]
    (told,) = found.ignored
    assert why in told
    assert "CANARY" not in told


def test_of_two_keys_with_one_name_the_first_is_used() -> None:
    found = parse_key_set(key_set(EC.jwk(), key_of("EdDSA").jwk()))
    assert found.keys["first"].algorithms == ("ES256",)
    assert found.ignored == ("'first': its 'kid' is another's",)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "Invalid JSON"),
        (b"<html>", "Invalid JSON"),
        (b"[]", "should be an object"),
        (b"{}", "keys: Field required"),
        (b'{"keys": {}}', "keys: Input should be a valid array"),
        (b'{"keys": [1]}', "keys.0: Input should be an object"),
        (b'{"keys": []}', "none of its 0 keys can be used"),
        (key_set(RSA.jwk(use="enc")), "none of its 1 keys can be used.*'second': it is for 'enc'"),
        (b"\x1f\x8b\x08", "Invalid JSON"),
    ],
)
def test_what_is_no_key_set_is_refused(document: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_key_set(document)
