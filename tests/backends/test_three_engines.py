"""The three local engines give the same tokens: 50 mixed requests, greedy and seeded, float32.

On a tiny random model, where near ties abound, and on the real one. Each engine has them all at
once, on a runner with the same weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from backends.priority_batcher.batcher import PriorityBatcher
from backends.priority_batcher.config import PriorityBatcherConfig
from backends.static_batch.config import StaticBatchConfig
from backends.static_batch.engine import StaticBatchEngine
from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.types import (
    EngineRequest,
    FinishReason,
    LogitRules,
    PromptLogprob,
    Runner,
    SampledToken,
    SamplingParams,
    SteppedEngine,
)
from tests.backends.conftest import MODEL
from tests.native_engine.random_schedules import MODELS, tiny_runner

NUM_REQUESTS = 50


def zero() -> float:
    return 0.0


def native(runner: Runner) -> SteppedEngine:
    config = EngineConfig(model=MODEL, max_num_seqs=16, max_num_batched_tokens=64)
    return Engine(runner, config, clock=zero)


def priority_batcher(runner: Runner) -> SteppedEngine:
    config = PriorityBatcherConfig(model=MODEL, default_generation_length=9, max_batch_size=16)
    return PriorityBatcher(runner, config, clock=zero)


def chunking_batcher(runner: Runner) -> SteppedEngine:
    config = PriorityBatcherConfig(model=MODEL, chunking=True, max_batch_prefill_tokens=40)
    return PriorityBatcher(runner, config, clock=zero)


def static_batch(runner: Runner) -> SteppedEngine:
    config = StaticBatchConfig(
        model=MODEL, max_batch_size=8, max_input_tokens=64, max_new_tokens=40, batch_timeout_s=0.0
    )
    return StaticBatchEngine(runner, config, clock=zero)


def mixed_requests(vocab_size: int, max_tokens: int) -> list[EngineRequest]:
    """Greedy and seeded; short and long; with rules, stops, and log-probabilities of both kinds."""
    choose = random.Random(4)

    def some(count: int) -> tuple[int, ...]:
        return tuple(choose.randrange(vocab_size) for _ in range(count))

    def sampling(index: int) -> SamplingParams:
        is_greedy = index % 2 == 0
        rules = LogitRules(
            repetition_penalty=1.2,
            presence_penalty=0.3,
            min_tokens=2,
            logit_bias=((some(1)[0], 2.0),),
            bad_words=(some(1), some(2)),
        )
        return SamplingParams(
            max_tokens=choose.randint(1, max_tokens),
            temperature=0.0 if is_greedy else choose.choice([0.7, 1.0, 1.5]),
            top_k=choose.choice([0, 20]),
            top_p=choose.choice([1.0, 0.9]),
            min_p=choose.choice([0.0, 0.02]),
            seed=choose.getrandbits(64),
            eos_token_ids=some(vocab_size // 50),
            stop_token_ids=some(1),
            ignore_eos=index % 5 == 0,
            num_logprobs=choose.choice([None, 0, 3]),
            num_prompt_logprobs=2 if index % 7 == 0 else None,
            rules=rules if index % 3 == 0 else None,
        )

    return [
        EngineRequest(
            request_id=str(index),
            prompt_token_ids=some(choose.choice([1, 3, 16, 17, 60])),
            sampling=sampling(index),
            tenant=choose.choice("ab"),
            priority=choose.choice([-1, 0, 1]),
        )
        for index in range(NUM_REQUESTS)
    ]


Answer = tuple[list[SampledToken], FinishReason, tuple[PromptLogprob, ...] | None]


def resumed(request: EngineRequest, answer: Answer, num_given: int) -> EngineRequest:
    """The same request, as its first engine leaves it behind when it is gone."""
    given = tuple(token.token_id for token in answer[0][:num_given])
    sampling = replace(request.sampling, num_prompt_logprobs=None)
    return replace(request, sampling=sampling, output_token_ids=given)


def answers(engine: SteppedEngine, requests: list[EngineRequest]) -> Mapping[str, Answer]:
    """All that each request got, log-probabilities to the bit."""
    for request in requests:
        engine.add(request)
    tokens: dict[str, list[SampledToken]] = {request.request_id: [] for request in requests}
    prompts: dict[str, tuple[PromptLogprob, ...]] = {}
    reasons: dict[str, FinishReason] = {}
    while engine.idle_s() == 0:
        for output in engine.step():
            assert output.error is None
            if output.token is not None:
                tokens[output.request_id].append(output.token)
            if output.prompt_logprobs is not None:
                prompts[output.request_id] = output.prompt_logprobs
            if output.finish_reason is not None:
                reasons[output.request_id] = output.finish_reason
    assert reasons.keys() == tokens.keys()
    return {name: (tokens[name], reasons[name], prompts.get(name)) for name in tokens}


OTHERS = [priority_batcher, chunking_batcher, static_batch]


@pytest.fixture(scope="module", params=MODELS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    return tiny_runner(request.param, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("make", OTHERS)
def test_every_engine_answers_alike_on_a_tiny_model(
    tiny: ModelRunner, make: Callable[[Runner], SteppedEngine]
) -> None:
    requests = mixed_requests(tiny.vocab_size, max_tokens=40)
    expected = answers(native(tiny), requests)
    assert {reason for _, reason, _ in expected.values()} >= {FinishReason.EOS, FinishReason.LENGTH}
    assert answers(make(tiny), requests) == expected


@pytest.mark.parametrize("make", [native, *OTHERS])
def test_every_engine_goes_on_with_what_another_has_begun(
    tiny: ModelRunner, make: Callable[[Runner], SteppedEngine]
) -> None:
    requests = mixed_requests(tiny.vocab_size, max_tokens=40)
    whole = answers(native(tiny), requests)
    begun = {
        request.request_id: (index * 7) % len(whole[request.request_id][0])
        for index, request in enumerate(requests)
    }
    assert sum(map(bool, begun.values())) > len(requests) // 2

    rest = answers(
        make(tiny),
        [
            resumed(request, whole[request.request_id], begun[request.request_id])
            for request in requests
        ],
    )

    for name, (tokens, reason, _) in whole.items():
        assert rest[name][:2] == (tokens[begun[name] :], reason)


@pytest.mark.weights
def test_every_engine_answers_alike_on_the_real_model() -> None:
    runner = build_runner(EngineConfig(model=MODEL, max_model_len=256, cpu_threads=1))
    requests = mixed_requests(runner.vocab_size, max_tokens=12)
    expected = answers(native(runner), requests)
    for make in OTHERS:
        assert answers(make(runner), requests) == expected
