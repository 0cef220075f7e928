"""API keys as text: their form, their digest, and how requests present them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gateway.errors import Unauthenticated
from gateway.tenancy.keys import ENTROPY_BYTES, PREFIX, bearer, digest, hint, mint, well_formed

KEY = mint(bytes(range(ENTROPY_BYTES)))


@given(st.binary(min_size=ENTROPY_BYTES, max_size=64))
def test_a_minted_key_is_well_formed_and_of_fixed_length(entropy: bytes) -> None:
    key = mint(entropy)
    assert well_formed(key)
    assert len(key) == len(PREFIX) + 36
    assert key.removeprefix(PREFIX).isalnum()


@given(st.integers(0, len(KEY) - 1), st.characters())
def test_any_one_character_changed_spoils_a_key(place: int, character: str) -> None:
    changed = KEY[:place] + character + KEY[place + 1 :]
    assert well_formed(changed) == (changed == KEY)


@pytest.mark.parametrize(
    "text", ["", PREFIX, KEY[:-1], KEY + "0", KEY + "\n", "sk-" + KEY, "é" * 44]
)
def test_other_texts_are_no_keys(text: str) -> None:
    assert not well_formed(text)


def test_too_little_randomness_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 32 random bytes, not 16"):
        mint(bytes(16))


def test_keys_that_differ_in_entropy_differ() -> None:
    assert len({mint(bytes([i] * ENTROPY_BYTES)) for i in range(256)}) == 256


def test_the_digest_is_hmac_sha_256() -> None:
    """Test case 2 of RFC 4231."""
    expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert digest("what do ya want for nothing?", b"Jefe").hex() == expected


def test_a_hint_shows_the_prefix_and_eight_characters() -> None:
    assert hint(KEY) == f"{KEY[:12]}…{KEY[-4:]}"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_schemes_case_does_not_matter(scheme: str) -> None:
    """Case Q-AUTH-SCHEME."""
    assert bearer([f"{scheme} {KEY}".encode()], []) == KEY


def test_the_key_may_come_alone_in_x_api_key() -> None:
    assert bearer([], [KEY.encode()]) == KEY


@pytest.mark.parametrize(
    "value",
    [
        f"Bearer  {KEY}",
        f"Bearer {KEY} ",
        f" Bearer {KEY}",
        f"Bearer\t{KEY}",
        f"Bearer {KEY}\n",
        f"Bearer {KEY} {KEY}",
        KEY,
        "Bearer",
        "Bearer ",
        "",
        "Basic dXNlcjpwYXNz",
        f"Bearer:{KEY}",
        "Bearer to_live_\u00ff",
        "Bearer \x00",
        "Bearer " + "x" * 100_000,
    ],
)
def test_every_other_form_is_unauthenticated_and_not_repeated(value: str) -> None:
    """Cases Q-AUTH-SCHEME and Q-KEY-IN-LOGS."""
    with pytest.raises(Unauthenticated, match="Authorization") as caught:
        bearer([value.encode("latin-1")], [])
    assert caught.value.missing
    assert "to_live_" not in caught.value.message
    assert "xxx" not in caught.value.message


@pytest.mark.parametrize("value", ["", " ", f" {KEY}", f"Bearer {KEY}", "to_live_\u00ff"])
def test_a_bad_x_api_key_is_unauthenticated(value: str) -> None:
    with pytest.raises(Unauthenticated, match="x-api-key header holds no key"):
        bearer([], [value.encode("latin-1")])


@pytest.mark.parametrize(("authorization", "x_api_key"), [(2, 0), (1, 1), (0, 2)])
def test_two_credentials_are_refused_even_if_they_agree(authorization: int, x_api_key: int) -> None:
    """Case Q-AUTH-SCHEME: which of two would count is a matter of taste, so neither does."""
    with pytest.raises(Unauthenticated, match="2 credentials"):
        bearer([f"Bearer {KEY}".encode()] * authorization, [KEY.encode()] * x_api_key)


def test_no_credentials_say_how_to_send_them() -> None:
    with pytest.raises(Unauthenticated, match="'Authorization: Bearer <key>'") as caught:
        bearer([], [])
    assert caught.value.missing


@given(st.lists(st.binary(), max_size=2), st.lists(st.binary(), max_size=2))
def test_no_bytes_at_all_crash_it(authorization: list[bytes], x_api_key: list[bytes]) -> None:
    """Case Q-AUTH-SCHEME."""
    try:
        secret = bearer(authorization, x_api_key)
    except Unauthenticated:
        return
    assert secret.isascii()
    assert secret.isprintable()
