"""Sequences that come with outputs: an engine goes on where another has stopped."""

from __future__ import annotations

import pytest

from native_engine.errors import EngineError, InvalidTokenId, RequestTooLong
from native_engine.types import LogitRules
from tests.native_engine.harness import drain, expected, make_engine, make_request
from tests.native_engine.stub_runner import StubRunner


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cut", [1, 4, 7])
@pytest.mark.parametrize("budget", [4, 64])
def test_yields_what_comes_behind_them(cut: int, budget: int, temperature: float) -> None:
    runner = StubRunner()
    whole = make_request("whole", max_tokens=8, temperature=temperature, seed=3)
    tokens, reason = expected(whole, runner)
    engine = make_engine(runner, max_num_batched_tokens=budget)

    engine.add(
        make_request(
            "rest", max_tokens=8, temperature=temperature, seed=3, outputs=tuple(tokens[:cut])
        )
    )

    assert drain(engine).of("rest") == (tokens[cut:], reason)


def test_rules_count_them_as_outputs() -> None:
    """The stub holds the history against what it reads, and `min_tokens` against the outputs."""
    runner = StubRunner()
    engine = make_engine(runner)
    rules = LogitRules(min_tokens=3)
    engine.add(make_request("rest", max_tokens=6, outputs=(7, 8), rules=rules))
    drain(engine)
    histories = [share.history for batch in runner.batches for share in batch.sequences]
    assert histories[0] is not None
    assert histories[0].num_prompt_tokens == 5
    assert len(runner.batches) == 4


def test_they_are_told_of_the_queue_and_the_cache_like_any_other() -> None:
    engine = make_engine(StubRunner())
    first = make_request("first", prompt=12, max_tokens=6)
    engine.add(first)
    tokens, _ = drain(engine).of("first")

    engine.add(make_request("rest", prompt=12, max_tokens=6, outputs=tuple(tokens[:5])))
    transcript = drain(engine)

    assert transcript.of("rest")[0] == tokens[5:]
    assert transcript.cached_tokens == {"rest": 12}  # of the prompt, though 16 were found
    stats = engine.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (24, 7)


@pytest.mark.parametrize(
    ("outputs", "prompt", "error", "message"),
    [
        ((1, 2), 5, EngineError, "2 outputs came with the request, which wants 2 in all"),
        ((50,), 5, InvalidTokenId, "output token id 50 is outside the vocabulary"),
        ((1,), 199, RequestTooLong, "200 tokens; with one to generate"),
    ],
)
def test_what_can_never_go_on_is_refused(
    outputs: tuple[int, ...], prompt: int, error: type[EngineError], message: str
) -> None:
    engine = make_engine(StubRunner())
    token_ids = tuple(i % 50 for i in range(prompt))
    with pytest.raises(error, match=message):
        engine.add(make_request("rest", prompt=token_ids, max_tokens=2, outputs=outputs))
    assert not engine.has_work
