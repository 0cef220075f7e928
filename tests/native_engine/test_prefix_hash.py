from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from native_engine.prefix_hash import DIGEST_BYTES, extend_hashes, root_hash

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=24)


def hashes_of(tokens: list[int], *, model: str = "m", salt: str = "", size: int = 4) -> list[bytes]:
    hashes = [root_hash(model, salt)]
    extend_hashes(hashes, tokens, block_size=size, num_blocks=len(tokens) // size)
    return hashes


@given(TOKENS, TOKENS, st.integers(0, 6))
def test_names_agree_exactly_as_far_as_the_tokens_do(
    first: list[int], tail: list[int], num_blocks: int
) -> None:
    second = first[: num_blocks * 4] + tail
    common = sum(
        1 for end in range(4, min(len(first), len(second)) + 1, 4) if first[:end] == second[:end]
    )
    pairs = list(zip(hashes_of(first), hashes_of(second), strict=False))
    assert [a == b for a, b in pairs] == [True] * (common + 1) + [False] * (len(pairs) - common - 1)


def test_the_same_block_has_another_name_behind_another() -> None:
    hashes = hashes_of([1, 2, 3, 4] * 3)
    assert len(set(hashes)) == 4


def test_models_and_salts_have_no_name_in_common() -> None:
    roots = [
        root_hash(model, salt)
        for model, salt in itertools.product(["", "a", "ab", "abc"], ["", "a", "bc", "c"])
    ]
    assert len(set(roots)) == 16


def test_names_are_wide_enough_to_go_unverified() -> None:
    """GHSA-rm76-4mrf-v9r8 (vLLM): nothing compares tokens, so the digest must be 128 bits."""
    assert DIGEST_BYTES == 16
    assert {len(name) for name in hashes_of(list(range(8)))} == {16}


def test_goes_on_where_it_stopped() -> None:
    tokens = list(range(12))
    hashes = hashes_of(tokens[:4])
    extend_hashes(hashes, tokens, block_size=4, num_blocks=3)
    extend_hashes(hashes, tokens, block_size=4, num_blocks=1)
    assert hashes == hashes_of(tokens)


def test_tells_tokens_apart_that_differ_above_16_bits() -> None:
    assert hashes_of([1, 2, 3, 4])[1] != hashes_of([1 + 2**16, 2, 3, 4])[1]
