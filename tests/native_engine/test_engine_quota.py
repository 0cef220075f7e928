"""Whose cached blocks are overwritten first, when tenants share an engine."""

from __future__ import annotations

import itertools

from hypothesis import given, settings, strategies as st

from native_engine.engine import Engine
from tests.native_engine.harness import Transcript, drain, make_engine, make_request
from tests.native_engine.stub_runner import StubRunner

QUIET = tuple(range(1, 30))  # 7 blocks of 4, and one token


class Tenants:
    """An engine for two tenants under salts of their own, or under one salt for both."""

    def __init__(
        self, *, num_blocks: int = 32, max_cached_share: float = 0.5, is_shared: bool = False
    ) -> None:
        self.engine: Engine = make_engine(
            StubRunner(num_blocks=num_blocks),
            max_num_batched_tokens=64,
            max_num_seqs=2,
            max_waiting=40,
            max_cached_share=max_cached_share,
        )
        self._is_shared = is_shared
        self._serials = map(str, itertools.count())

    @property
    def has_room(self) -> bool:
        stats = self.engine.stats()
        return stats.num_running + stats.num_waiting < 42

    def add(self, tenant: str, prompt: tuple[int, ...]) -> str:
        request_id = next(self._serials)
        salt = "" if self._is_shared else tenant
        self.engine.add(
            make_request(request_id, prompt=prompt, max_tokens=2, cache_salt=salt, tenant=tenant)
        )
        return request_id

    def cached(self, tenant: str, prompt: tuple[int, ...]) -> int:
        """Run a prompt. Returns how many of its tokens were found."""
        request_id = self.add(tenant, prompt)
        return drain(self.engine).cached_tokens[request_id]


def flood(number: int, length: int = 21) -> tuple[int, ...]:
    """A prompt that begins like no other."""
    return (number, *range(length - 1))


def test_a_flood_overwrites_what_it_left_itself_and_not_what_another_asks_again() -> None:
    tenants = Tenants()
    assert tenants.cached("quiet", QUIET) == 0
    for number in range(40):
        tenants.cached("loud", flood(number))
    assert tenants.cached("quiet", QUIET) == 28


def test_without_a_quota_the_flood_would_have_taken_it() -> None:
    tenants = Tenants(max_cached_share=1.0)
    tenants.cached("quiet", QUIET)
    for number in range(40):
        tenants.cached("loud", flood(number))
    assert tenants.cached("quiet", QUIET) == 0


def test_where_all_share_what_was_computed_belongs_to_whoever_computed_it() -> None:
    """The loud one only reads the quiet one's prompt: it does not become its own."""
    tenants = Tenants(is_shared=True)
    tenants.cached("quiet", QUIET)
    for number in range(10):
        tenants.cached("loud", flood(40 + number))
    assert tenants.cached("loud", QUIET) == 28
    for number in range(10):
        tenants.cached("loud", flood(30 + number))
    assert tenants.cached("quiet", QUIET) == 28


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("flood"), st.integers(1, 12), st.integers(5, 24)),
            st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
            st.tuples(st.just("ask"), st.just(0), st.just(0)),
        ),
        max_size=20,
    )
)
def test_no_flood_pushes_a_quiet_tenant_s_prompt_out(moves: list[tuple[str, int, int]]) -> None:
    """Two floods run at once, in at most 7 blocks each: with the 7 of the quiet one that is less
    than the half of the pool that the loud one's share leaves.
    """
    tenants = Tenants(num_blocks=44)
    tenants.cached("quiet", QUIET)
    transcript = Transcript()
    numbers = itertools.cycle(range(50))
    for what, count, length in moves:
        for _ in range(count):
            if what == "step":
                transcript.record(tenants.engine.step())
                tenants.engine.check_invariants()
            elif tenants.has_room:
                tenants.add("loud", flood(next(numbers), length))
        if what == "ask":
            drain(tenants.engine, transcript)
            assert tenants.cached("quiet", QUIET) == 28
    drain(tenants.engine, transcript)
    assert tenants.cached("quiet", QUIET) == 28
