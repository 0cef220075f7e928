"""What the engine's tests share: an engine over the stub, requests, and a record of outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from native_engine.config import EngineConfig, Speculation
from native_engine.engine import Engine
from native_engine.output_lengths import ENOUGH
from native_engine.types import (
    EngineRequest,
    FinishReason,
    LogitRules,
    PromptLogprob,
    SamplingParams,
    SequenceOutput,
)
from tests.native_engine.stub_runner import StubRunner, continuation


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def make_engine(
    runner: StubRunner,
    *,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    max_waiting: int = 8,
    clock: Callable[[], float] = lambda: 0.0,
    prefix_caching: bool = True,
    max_cached_share: float = 0.5,
    max_waiting_tokens: int = 0,
    max_bypass: int = 4,
    aging_s: float = 30.0,
    target_itl_s: float = 0.0,
    speculation: Speculation = "off",
) -> Engine:
    return Engine(
        runner,
        EngineConfig(
            model=Path("stub"),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_waiting=max_waiting,
            prefix_caching=prefix_caching,
            max_cached_share=max_cached_share,
            max_waiting_tokens=max_waiting_tokens,
            max_bypass=max_bypass,
            aging_s=aging_s,
            target_itl_s=target_itl_s,
            speculation=speculation,
        ),
        clock=clock,
    )


def let_expect_short_outputs(engine: Engine) -> None:
    """Run as many requests of one token as it takes for the next to be expected to be as short.

    What then asks for more is admitted too easily, and preempted.
    """
    for index in range(ENOUGH):
        engine.add(make_request(f"short {index}", prompt=1, max_tokens=1))
        engine.step()
    assert not engine.has_work


def make_request(
    request_id: str,
    *,
    prompt: tuple[int, ...] | int = 5,
    max_tokens: int = 6,
    temperature: float = 0.0,
    seed: int = 0,
    eos: tuple[int, ...] = (),
    stop: tuple[int, ...] = (),
    ignore_eos: bool = False,
    rules: LogitRules | None = None,
    cache_salt: str = "",
    tenant: str = "",
    fork_of: str | None = None,
    weight: float = 1.0,
    priority: int = 0,
    timeout_s: float | None = None,
    num_prompt_logprobs: int | None = None,
    outputs: tuple[int, ...] = (),
) -> EngineRequest:
    """A greedy request without stops unless told; an int makes a prompt of so many tokens."""
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=tuple(range(1, prompt + 1)) if isinstance(prompt, int) else prompt,
        sampling=SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            eos_token_ids=eos,
            stop_token_ids=stop,
            ignore_eos=ignore_eos,
            rules=rules,
            num_prompt_logprobs=num_prompt_logprobs,
        ),
        cache_salt=cache_salt,
        tenant=tenant,
        fork_of=fork_of,
        weight=weight,
        priority=priority,
        timeout_s=timeout_s,
        output_token_ids=outputs,
    )


def expected(request: EngineRequest, runner: StubRunner) -> tuple[list[int], FinishReason]:
    return continuation(
        request.prompt_token_ids,
        request.sampling,
        vocab_size=runner.vocab_size,
        max_num_tokens=min(runner.max_model_len, runner.num_blocks * runner.block_size),
    )


class Transcript:
    """What each request got; an output after the end fails at once."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.errors: dict[str, str] = {}
        self.cached_tokens: dict[str, int] = {}
        self.prompt_logprobs: dict[str, tuple[PromptLogprob, ...]] = {}

    def record(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            assert output.request_id not in self.reasons
            assert output.request_id not in self.errors
            if output.token is not None:
                self.tokens.setdefault(output.request_id, []).append(output.token.token_id)
            if output.cached_tokens is not None:
                assert output.request_id not in self.cached_tokens
                self.cached_tokens[output.request_id] = output.cached_tokens
            if output.prompt_logprobs is not None:
                assert output.request_id not in self.prompt_logprobs
                self.prompt_logprobs[output.request_id] = output.prompt_logprobs
            if output.finish_reason is not None:
                self.reasons[output.request_id] = output.finish_reason
            if output.error is not None:
                self.errors[output.request_id] = output.error

    def of(self, request_id: str) -> tuple[list[int], FinishReason]:
        return self.tokens[request_id], self.reasons[request_id]


def drain(engine: Engine, transcript: Transcript | None = None, *, limit: int = 1000) -> Transcript:
    """Step until idle, checking the books; `limit` steps are never needed."""
    transcript = transcript or Transcript()
    for _ in range(limit):
        if not engine.has_work:
            break
        transcript.record(engine.step())
        engine.check_invariants()
    assert not engine.has_work
    assert engine.stats().num_free_blocks == engine.info.num_blocks
    return transcript
