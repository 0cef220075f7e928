"""With one class, the batcher does what TGI's rules say, step for step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from native_engine.types import EngineRequest, StepBatch
from tests.backends.priority_batcher.harness import admission_log, make_batcher
from tests.backends.priority_batcher.simulator import Job, Rules, Simulator
from tests.native_engine.harness import Transcript, expected, make_request
from tests.native_engine.stub_runner import StubRunner

NUM_TRACES = 500
VOCAB_SIZE = 20  # small: answers do stop


def random_rules(choose: random.Random) -> Rules:
    block_size = choose.choice([1, 2, 4, 8])
    num_blocks = -(-choose.randint(60, 160) // block_size)
    chunking = choose.random() < 0.4
    return Rules(
        block_size=block_size,
        num_blocks=num_blocks,
        max_batch_prefill_tokens=choose.randint(1, 40) if chunking else choose.randint(20, 60),
        max_batch_total_tokens=num_blocks * block_size - choose.choice([0, 0, 7, 20]),
        waiting_served_ratio=choose.choice([0.0, 0.3, 0.3, 0.5, 1.2, 5.0]),
        max_waiting_tokens=choose.choice([1, 2, 5, 20]),
        max_batch_size=choose.choice([2, 5, 1000, 1000]),
        generation_length=choose.choice([1, 3, 10, 1000]),
        chunking=chunking,
    )


def options_of(rules: Rules) -> dict[str, Any]:
    return {
        "max_input_tokens": min(20, rules.max_batch_prefill_tokens) if not rules.chunking else 20,
        "max_total_tokens": 40,
        "max_batch_prefill_tokens": rules.max_batch_prefill_tokens,
        "max_batch_total_tokens": rules.max_batch_total_tokens,
        "waiting_served_ratio": rules.waiting_served_ratio,
        "max_waiting_tokens": rules.max_waiting_tokens,
        "max_batch_size": rules.max_batch_size,
        "default_generation_length": rules.generation_length,
        "max_concurrent_requests": 1000,
        "chunking": rules.chunking,
        "prefix_caching": False,
    }


def random_requests(choose: random.Random) -> list[EngineRequest]:
    return [
        make_request(
            str(index),
            prompt=tuple(choose.randrange(VOCAB_SIZE) for _ in range(choose.randint(1, 20))),
            max_tokens=choose.randint(1, 20),
            eos=choose.choice([(), (), (0,), (0, 1, 2)]),
            temperature=1.0,
            seed=choose.randrange(100),
        )
        for index in range(choose.randint(3, 25))
    ]


def run_trace(seed: int, tally: Counter[str]) -> None:
    choose = random.Random(seed)
    rules, requests = random_rules(choose), random_requests(choose)
    runner = StubRunner(
        num_blocks=rules.num_blocks, block_size=rules.block_size, vocab_size=VOCAB_SIZE
    )
    batcher, simulator = make_batcher(runner, **options_of(rules)), Simulator(rules)
    last_step = choose.choice([1, 10, 60])
    arrivals = sorted((choose.randrange(last_step), index) for index in range(len(requests)))
    aborts = [(choose.randrange(60), r.request_id) for r in requests if choose.random() < 0.15]
    transcript, step = Transcript(), 0
    with admission_log() as log:
        while arrivals or batcher.has_work:
            while arrivals and arrivals[0][0] <= step:
                request = requests[arrivals.pop(0)[1]]
                tokens, _ = expected(request, runner)
                batcher.add(request)
                simulator.arrive(
                    Job(
                        name=request.request_id,
                        prompt=len(request.prompt_token_ids),
                        asked=request.sampling.max_tokens,
                        drawn=len(tokens),
                    )
                )
            due = [name for at, name in aborts if at == step]
            inside = due if choose.random() < 0.5 else []
            for name in due if not inside else []:
                batcher.abort(name)
                simulator.abort(name)
            runner.on_execute = partial(abort_all, batcher.abort, inside)
            if batcher.has_work:
                transcript.record(batcher.step())
                simulator.step(inside)
                batcher.check_invariants()
            step += 1
    computed = [[(s.request_id, len(s.token_ids)) for s in b.sequences] for b in runner.batches]
    assert computed == simulator.passes, seed
    assert log == simulator.admissions, seed
    for request in requests:
        if request.request_id in transcript.reasons:
            assert transcript.of(request.request_id) == expected(request, runner)
    tally["continued"] += len(requests) < sum(len(ids) for _, ids in log)
    tally["waited"] += any(len(ids) < len(requests) for _, ids in log)
    tally["chunked"] += any(
        not share.sample for batch in runner.batches for share in batch.sequences
    )
    tally["aborted"] += len(transcript.reasons) < len(requests)
    tally["passes"] += len(computed)


def abort_all(abort: Callable[[str], None], names: list[str], batch: StepBatch) -> None:
    for name in names:
        abort(name)


def test_one_class_is_batched_by_tgi_s_rules_step_for_step() -> None:
    """The promise of one class, on random traffic, budgets and ratios."""
    tally: Counter[str] = Counter()
    for seed in range(NUM_TRACES):
        run_trace(seed, tally)
    assert min(tally[what] for what in ("continued", "waited", "chunked", "aborted")) > 50, tally
