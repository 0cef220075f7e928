"""Random schedules on a tiny real model: every answer is, bit for bit, what it is alone.

A schedule is a pool, a budget, a block size, a cache or none, speculation or none, and requests of
several tenants and classes, some to be forked from others, that come at random steps, are aborted
between or inside steps, and are preempted by want of blocks or by force. What a request yields
alone is computed once, whole prompt at once, without a cache or speculation, in blocks of 16; so
batch mates, arrival order, budget, chunks, block size, cache, forks, salts, preemptions, and drafts
right and wrong must all leave no trace in its tokens, its log-probabilities, those of its prompt
and its end. All is a function of the seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.types import (
    EngineRequest,
    FinishReason,
    LogitRules,
    PromptLogprob,
    SampledToken,
    SamplingParams,
    SequenceResult,
    StepBatch,
)
from tests.native_engine.checkpoints import SIZES, tiny_model, write_folder
from tests.native_engine.peeking import another_runner, preempt, running

VOCAB_SIZE: int = SIZES["vocab_size"]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "window": {"model_type": "mistral", "sliding_window": 9},
}
MAX_PROMPT, MAX_OUTPUT = 36, 40
NUM_REQUESTS = 200  # different ones; schedules mix and repeat them

FEW = (9, 10, 11)  # an answer of so few ids repeats itself, so that drafts are made


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All that a request yields. Of its prompt nothing, unless it asks."""

    tokens: list[SampledToken]
    reason: FinishReason
    prompt: tuple[PromptLogprob, ...] | None


def tiny_runner(model: str, folder: Path) -> ModelRunner:
    """One of `MODELS` with random weights, about 100,000 of them, in float32 on one thread."""
    checkpoint = tiny_model(AutoConfig.for_model(**{**SIZES, **MODELS[model]}), seed=1)
    path = write_folder(checkpoint, folder)
    return build_runner(EngineConfig(model=path, kv_cache_bytes=1 << 22, cpu_threads=1))


@dataclass(slots=True)
class Tally:
    """What all schedules came to."""

    schedules: int = 0
    requests: int = 0
    steps: int = 0
    tokens: int = 0
    scored_tokens: int = 0  # of prompts, those whose log-probabilities were told
    draft_tokens: int = 0  # guessed ahead and verified
    accepted_tokens: int = 0  # among them
    cached_tokens: int = 0
    preemptions: int = 0
    forced_preemptions: int = 0  # among them
    aborts: int = 0
    mismatches: list[str] = field(default_factory=list)


class InterruptibleRunner:
    """A runner that lets something happen in the middle of a step."""

    def __init__(self, runner: ModelRunner) -> None:
        self.num_blocks = runner.num_blocks
        self.block_size = runner.block_size
        self.vocab_size = runner.vocab_size
        self.max_model_len = runner.max_model_len
        self.dtype = runner.dtype
        self.device = runner.device
        self.deterministic = runner.deterministic
        self.description = runner.description
        self.interrupt: Callable[[], None] = lambda: None
        self._runner = runner

    def execute(self, batch: StepBatch) -> list[SequenceResult]:
        results = self._runner.execute(batch)
        self.interrupt()
        return results


@dataclass(slots=True)
class Arrival:
    """One request of a schedule, and what came of it so far."""

    request: EngineRequest
    expected: Answer
    at_step: int
    aborted_at: int | None  # counted in steps too
    tokens: list[SampledToken] = field(default_factory=list)
    reason: FinishReason | None = None
    prompts: list[tuple[PromptLogprob, ...]] = field(default_factory=list)  # one, if it asks

    @property
    def mismatch(self) -> str | None:
        """What is wrong with it by now; what is still missing is not."""
        tokens, reason = self.expected.tokens, self.expected.reason
        for index, token in enumerate(self.tokens):
            if token not in tokens[index : index + 1]:
                return f"token {index} is {token} and not {tokens[index : index + 1]}"
        if self.reason is not None and (self.reason, len(self.tokens)) != (reason, len(tokens)):
            return (
                f"it ends after {len(self.tokens)} with {self.reason}, not {len(tokens)}, {reason}"
            )
        has_begun = self.tokens or self.reason is not None
        prompts = [self.expected.prompt] if has_begun and self.expected.prompt is not None else []
        if self.prompts != prompts:
            return f"of the prompt is told {self.prompts} and not {prompts}"
        return None


class RandomSchedules:
    """Runs schedules over one model, and keeps what each request yields alone."""

    def __init__(self, runner: ModelRunner) -> None:
        assert runner.deterministic
        self.tally = Tally()
        self._runner = runner
        choose = random.Random(VOCAB_SIZE)
        pieces = [_random_ids(choose, 8) for _ in range(4)]  # each a whole block of the smallest
        self._requests = [_random_request(choose, pieces) for _ in range(NUM_REQUESTS)]
        self._alone: dict[int, Answer] = {}

    def run(self, seed: int) -> None:
        """Run a schedule to its end, and count it.

        Raises:
            AssertionError: the engine's books do not balance, or blocks are missing at the end.
        """
        _Run(self, random.Random(seed), f"schedule {seed}").run()
        self.tally.schedules += 1

    def engine_over(self, choose: random.Random) -> tuple[Engine, InterruptibleRunner]:
        """With blocks for any one request at least, and not for all of them."""
        block_size = choose.choice([8, 8, 16, 32])
        fewest = -(-(MAX_PROMPT + MAX_OUTPUT) // block_size)
        runner = another_runner(
            self._runner, num_blocks=fewest + choose.randrange(5), block_size=block_size
        )
        interruptible = InterruptibleRunner(runner)
        max_num_seqs = choose.randint(1, 8)
        config = EngineConfig(
            model=Path("tiny"),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + choose.randrange(48),
            prefix_caching=choose.random() < 0.75,
            speculation=choose.choice(["off", "prompt_lookup"]),
        )
        return Engine(interruptible, config, clock=lambda: 0.0), interruptible

    def arrivals(self, choose: random.Random) -> list[Arrival]:
        """In the order in which they come; some come again."""
        last_step = choose.choice([1, 10, 40])
        steps = sorted(choose.randrange(last_step) for _ in range(choose.randint(3, 12)))
        some = choose.sample(range(NUM_REQUESTS), 8)
        arrivals: list[Arrival] = []
        for serial, step in enumerate(steps):
            index, salt = choose.choice(some), choose.choice(["", "", "another"])
            first = self._arrival(choose, index, f"{serial}", salt, step)
            arrivals.append(first)
            for child in range(choose.choice([0, 0, 0, 0, 1, 3])):
                name = f"{serial}-{child}"
                arrivals.append(self._arrival(choose, index, name, salt, step, first.request))
        return arrivals

    def _arrival(
        self,
        choose: random.Random,
        index: int,
        request_id: str,
        cache_salt: str,
        at_step: int,
        parent: EngineRequest | None = None,
    ) -> Arrival:
        """Each of a tenant and class of its own, and a family's of its parent's."""
        prompt, sampling = self._requests[index]
        tenant, weight = choose.choice([("", 1.0), ("light", 1.0), ("heavy", 3.0)])
        priority = choose.choice([0, 0, 1, 3])
        expected = self._answer_alone(index)
        if parent and choose.random() < 0.5:  # who asks about its prompt cannot be forked
            sampling = replace(sampling, num_prompt_logprobs=None)
            expected = replace(expected, prompt=None)
        return Arrival(
            request=EngineRequest(
                request_id=request_id,
                prompt_token_ids=prompt,
                sampling=sampling,
                cache_salt=cache_salt,
                tenant=parent.tenant if parent else tenant,
                weight=parent.weight if parent else weight,
                priority=parent.priority if parent else priority,
                fork_of=parent.request_id if parent else None,
            ),
            expected=expected,
            at_step=at_step,
            aborted_at=at_step + choose.randrange(30) if choose.random() < 0.15 else None,
        )

    def _answer_alone(self, index: int) -> Answer:
        if index not in self._alone:
            prompt, sampling = self._requests[index]
            config = EngineConfig(
                model=Path("tiny"), max_num_batched_tokens=MAX_PROMPT + 32, prefix_caching=False
            )
            engine = Engine(self._runner, config, clock=lambda: 0.0)
            engine.add(EngineRequest(request_id="", prompt_token_ids=prompt, sampling=sampling))
            outputs = [output for _ in range(MAX_OUTPUT) for output in engine.step()]
            tokens = [output.token for output in outputs if output.token is not None]
            reason = outputs[-1].finish_reason
            assert reason is not None
            self._alone[index] = Answer(
                tokens=tokens, reason=reason, prompt=outputs[0].prompt_logprobs
            )
        return self._alone[index]


class _Run:
    """One schedule."""

    def __init__(self, schedules: RandomSchedules, choose: random.Random, name: str) -> None:
        self._name = name
        self._choose = choose
        self._tally = schedules.tally
        self._engine, self._runner = schedules.engine_over(choose)
        self._coming = deque(schedules.arrivals(choose))
        self._preemption_rate = choose.choice([0.0, 0.05, 0.2])
        self._here: dict[str, Arrival] = {}

    def run(self) -> None:
        engine, tally = self._engine, self._tally
        step = 0
        while self._coming or self._here:
            while self._coming and self._coming[0].at_step <= step:
                arrival = self._coming.popleft()
                self._here[arrival.request.request_id] = arrival
                engine.add(arrival.request)
            self._preempt_one()
            self._abort_those_due(step)
            self._step()
            engine.check_invariants()
            step += 1
        stats = engine.stats()
        assert not engine.has_work
        assert stats.num_free_blocks == stats.num_blocks, f"{self._name} lost blocks"
        tally.steps += step
        tally.draft_tokens += stats.num_draft_tokens
        tally.accepted_tokens += stats.num_accepted_tokens
        tally.cached_tokens += stats.prefix_cache_hits
        tally.preemptions += stats.num_preemptions

    def _preempt_one(self) -> None:
        sequences = running(self._engine)
        if sequences and self._choose.random() < self._preemption_rate:
            preempt(self._engine, self._choose.choice(sequences))
            self._tally.forced_preemptions += 1

    def _abort_those_due(self, step: int) -> None:
        """At once, or in the middle of the step that follows."""
        due = [a for a in self._here.values() if a.aborted_at is not None and a.aborted_at <= step]
        for arrival in due:
            if self._choose.random() < 0.5:
                self._abort(arrival)
            else:
                self._runner.interrupt = partial(self._abort, arrival)

    def _abort(self, arrival: Arrival) -> None:
        """Nothing more may come of it; what came must be right."""
        del self._here[arrival.request.request_id]
        self._engine.abort(arrival.request.request_id)
        self._tally.aborts += 1
        self._close(arrival)

    def _step(self) -> None:
        outputs = self._engine.step()
        self._runner.interrupt = lambda: None
        for output in outputs:
            assert output.error is None
            arrival = self._here[output.request_id]
            if output.token is not None:
                arrival.tokens.append(output.token)
            if output.prompt_logprobs is not None:
                arrival.prompts.append(output.prompt_logprobs)
            arrival.reason = output.finish_reason
            if output.finish_reason is not None:
                del self._here[output.request_id]
                self._close(arrival)

    def _close(self, arrival: Arrival) -> None:
        self._tally.requests += 1
        self._tally.tokens += len(arrival.tokens)
        self._tally.scored_tokens += sum(map(len, arrival.prompts))
        mismatch = arrival.mismatch
        if mismatch is not None:
            self._tally.mismatches.append(f"{self._name}, {arrival.request}: {mismatch}")


def _random_ids(choose: random.Random, length: int) -> tuple[int, ...]:
    return tuple(choose.randrange(VOCAB_SIZE) for _ in range(length))


def _random_request(
    choose: random.Random, pieces: list[tuple[int, ...]]
) -> tuple[tuple[int, ...], SamplingParams]:
    """Greedy and seeded, plain and with every filter and rule.

    Many begin alike, and some hold the same block behind another beginning.
    """
    first, second = choose.sample(pieces[:3], 2)
    whole = (*first, *second, *pieces[2], *pieces[3])
    prompt = (*whole[: choose.randint(1, len(whole))], *_random_ids(choose, choose.randrange(4)))
    return prompt, SamplingParams(
        max_tokens=choose.choice([0, *[choose.randint(1, MAX_OUTPUT)] * 9]),
        temperature=choose.choice([0.0, 0.0, 0.7, 1.0, 2.0]),
        top_k=choose.choice([0, 0, 1, 5, 40]),
        top_p=choose.choice([1.0, 1.0, 0.9, 0.3]),
        min_p=choose.choice([0.0, 0.0, 0.05]),
        typical_p=choose.choice([1.0, 1.0, 1.0, 0.8]),
        seed=choose.getrandbits(64),
        eos_token_ids=choose.choice([(), (), tuple(range(4))]),
        stop_token_ids=choose.choice([(), (), tuple(range(4, 8))]),
        ignore_eos=choose.random() < 0.2,
        num_logprobs=choose.choice([None, 0, 3, VOCAB_SIZE]),
        num_prompt_logprobs=choose.choice([None, None, None, 0, 3]),
        rules=_random_rules(choose) if choose.random() < 0.5 else None,
    )


def _random_rules(choose: random.Random) -> LogitRules:
    return LogitRules(
        allowed_token_ids=choose.choice([(), (), tuple(range(0, VOCAB_SIZE, 3)), FEW]),
        bad_words=choose.choice([(), (), ((5,), (7, 9), (9, 7))]),
        min_tokens=choose.choice([0, 0, 4]),
        logit_bias=choose.choice([(), (), ((1, 2.0), (11, -3.0))]),
        repetition_penalty=choose.choice([1.0, 1.3, 0.8]),
        frequency_penalty=choose.choice([0.0, 0.4, -0.2]),
        presence_penalty=choose.choice([0.0, 0.7]),
    )
