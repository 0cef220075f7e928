"""The oracle itself: what it draws, and that it notices what it is there to notice."""

from __future__ import annotations

import pytest

from native_engine.types import SamplingParams, ScheduledSequence, SequenceResult, StepBatch
from tests.native_engine.harness import make_request
from tests.native_engine.stub_runner import StubRunner, continuation, next_token

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
SEEDED = SamplingParams(max_tokens=8, temperature=1.0, seed=3)
PROMPT = [3, 1, 4, 1, 5, 9]


def share(
    token_ids: list[int],
    start: int = 0,
    *,
    table: list[int],
    request_id: str = "a",
    sampling: SamplingParams = GREEDY,
    num_drafts: int = 0,
) -> ScheduledSequence:
    return ScheduledSequence(
        request_id=request_id,
        token_ids=token_ids,
        start=start,
        block_table=table,
        sampling=sampling,
        sample=True,
        num_drafts=num_drafts,
    )


def run(
    runner: StubRunner, *shares: ScheduledSequence, copies: tuple[tuple[int, int], ...] = ()
) -> list[list[int]]:
    results = runner.execute(StepBatch(sequences=shares, copies=copies))
    return [[token.token_id for token in result.tokens] for result in results]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
def test_draws_what_the_continuation_says(sampling: SamplingParams) -> None:
    runner, known, table = StubRunner(), list(PROMPT), [7, 2, 5, 0]
    expected, _ = continuation(PROMPT, sampling, vocab_size=50, max_num_tokens=200)
    start = 0
    for token_id in expected:
        assert next_token(known, sampling, 50) == token_id
        assert run(runner, share(known[start:], start, table=table, sampling=sampling)) == [
            [token_id]
        ]
        start = len(known)
        known.append(token_id)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
def test_draws_behind_every_draft_as_if_those_before_were_right(sampling: SamplingParams) -> None:
    """Two right guesses, a wrong one and one behind it; then the sequence goes on from the first
    wrong one, over slots that hold it.
    """
    runner, table = StubRunner(), [0, 1, 2, 3]
    right, _ = continuation(PROMPT, sampling, vocab_size=50, max_num_tokens=200)
    guesses = [*right[:2], (right[2] + 1) % 50, 7]
    (drawn,) = run(runner, share([*PROMPT, *guesses], table=table, sampling=sampling, num_drafts=4))
    assert drawn[:3] == right[:3]
    for index in range(5):
        assert drawn[index] == next_token([*PROMPT, *guesses[:index]], sampling, 50)
    assert run(runner, share([right[2]], 8, table=table, sampling=sampling)) == [[right[3]]]


def test_copies_blocks_before_it_writes_and_in_order() -> None:
    """Block 1 goes to 4, which goes to 5; a fork goes on in 5, its parent in 1."""
    runner = StubRunner()
    run(runner, share(PROMPT, table=[0, 1]))
    parent = share([11], 6, table=[0, 1])
    child = share([22], 6, table=[0, 5], request_id="child")
    drawn = run(runner, parent, child, copies=((1, 4), (4, 5)))
    assert drawn == [[next_token([*PROMPT, last], GREEDY, 50)] for last in (11, 22)]


def test_notices_a_block_that_another_writes_to_later_in_the_step() -> None:
    runner = StubRunner()
    run(runner, share(PROMPT, table=[0, 1]))
    with pytest.raises(AssertionError, match="reads another's slots"):
        run(runner, share([11], 6, table=[0, 1]), share([5], table=[1], request_id="b"))


@pytest.mark.parametrize("table", [[0, 1], [0, 2], [1, 0], [0]])
def test_notices_a_context_that_is_not_as_it_was(table: list[int]) -> None:
    """A slot wiped, another block, the blocks in another order, and one block too few."""
    runner, read = StubRunner(), [0, 1]
    run(runner, share(PROMPT, table=read))
    run(runner, share([8, 8, 8, 8], table=[2], request_id="b"))
    if table == read:
        runner.poison([0])
    read[:] = table
    with pytest.raises((AssertionError, IndexError)):
        run(runner, share([11], 6, table=read))


def test_notices_a_block_computed_behind_another_beginning() -> None:
    """Its own tokens are right: only the digest tells."""
    runner = StubRunner()
    run(runner, share([1, 2, 3, 4, 5, 6, 7, 8], table=[0, 1]))
    run(runner, share([4, 3, 2, 1], table=[2], request_id="b"))
    with pytest.raises(AssertionError, match=r"reads .* at 4"):
        run(runner, share([9], 8, table=[2, 1, 3], request_id="c"))


def test_notices_another_salt_and_another_prompt() -> None:
    runner = StubRunner()
    run(runner, share(PROMPT, table=[0, 1]))
    runner.requests["salted"] = make_request("salted", prompt=tuple(PROMPT), cache_salt="s")
    runner.requests["other"] = make_request("other", prompt=(3, 1, 4, 2))
    with pytest.raises(AssertionError, match="at 0"):
        run(runner, share([9], 4, table=[0, 2], request_id="salted"))
    with pytest.raises(AssertionError, match="another's prompt"):
        run(runner, share([9], 4, table=[0, 3], request_id="other"))


def test_a_share_without_a_sample_draws_nothing() -> None:
    chunk = ScheduledSequence(
        request_id="a", token_ids=[1], start=0, block_table=[0], sampling=GREEDY, sample=False
    )
    assert StubRunner().execute(StepBatch(sequences=(chunk,))) == [SequenceResult()]
