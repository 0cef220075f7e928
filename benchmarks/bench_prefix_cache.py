"""What the prefix cache saves on a repeated prompt, and what it costs when nothing repeats.

Savings: the time to the first token of a prompt of 1,000 tokens, cold and again, on a real model.
Costs: the thread's own time for a step of 31 decodes and for one that admits a prompt of 1,000
tokens beside them, over a runner that computes nothing; and what the difference is of the time that
the real model takes for the same. The cache is on and off in turn, every 16 steps, so that a busy
machine slows both alike; the median counts.

    python -m benchmarks.bench_prefix_cache --model .turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf

On 2 shared, busy cores the first token of SmolLM2-135M (float32, 1 thread) takes 4.8 to 9.3 s cold
and 0.06 to 0.09 s warm: 0.013 of it at most. A step of 31 decodes takes 119 us with the cache and
110 without, 0.01% of the model's 155 ms; one that admits 1,000 tokens beside them 274 and 168,
0.002% of the model's time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.model_runner import build_runner
from native_engine.types import (
    EngineRequest,
    Runner,
    SampledToken,
    SamplingParams,
    SequenceResult,
    StepBatch,
)

PROMPT_TOKENS = 1000
NUM_DECODES = 32
PERIOD = 16  # steps, in which each sequence closes one block
NUM_PERIODS = 100


class NullRunner:
    """Draws token 5 at once."""

    dtype = device = description = ""
    deterministic = True
    num_blocks = 8192
    block_size = 16
    vocab_size = 49_152
    max_model_len = 8192

    def execute(self, batch: StepBatch) -> list[SequenceResult]:
        result = SequenceResult((SampledToken(token_id=5),))
        return [result if share.sample else SequenceResult() for share in batch.sequences]


def make_engine(runner: Runner, *, max_num_batched_tokens: int, prefix_caching: bool) -> Engine:
    """An engine with a place for each of the decodes."""
    return Engine(
        runner,
        EngineConfig(
            model=Path("bench"),
            max_num_seqs=NUM_DECODES,
            max_num_batched_tokens=max_num_batched_tokens,
            max_waiting=0,
            prefix_caching=prefix_caching,
        ),
        clock=time.monotonic,
    )


def request(name: str, num_tokens: int, max_tokens: int, seed: int) -> EngineRequest:
    """Of `num_tokens` random tokens."""
    choose = random.Random(seed)
    return EngineRequest(
        request_id=name,
        prompt_token_ids=tuple(choose.randrange(49_152) for _ in range(num_tokens)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
    )


def first_token_s(engine: Engine, name: str, seed: int) -> float:
    """From add() to the only token of a random prompt."""
    started_s = time.perf_counter()
    engine.add(request(name, PROMPT_TOKENS, 1, seed))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - started_s


def steps_us(engine: Engine, count: int) -> float:
    """What `count` steps take of this thread's time, each."""
    started_s = time.thread_time()
    for _ in range(count):
        engine.step()
    return (time.thread_time() - started_s) * 1e6 / count


def start_decodes(engine: Engine, num_tokens: int) -> None:
    """All but one of the places, each with a prompt of its own."""
    for index in range(NUM_DECODES - 1):
        engine.add(request(f"decode-{index}", 100, num_tokens, 1000 + index))
        engine.step()


def admission_us(engine: Engine, index: int) -> float:
    """A step that admits a long prompt beside the decodes; nothing repeats."""
    engine.add(request(f"long-{index}", PROMPT_TOKENS, 1, index))
    return steps_us(engine, 1)


def scheduling_costs() -> tuple[list[float], list[float]]:
    """Of a step of decodes and of one that admits, each in us [without the cache, with it].

    In turn, so that whatever slows the machine slows both.
    """
    engines = [
        make_engine(NullRunner(), max_num_batched_tokens=2048, prefix_caching=is_on)
        for is_on in (False, True)
    ]
    for engine in engines:
        start_decodes(engine, PERIOD * NUM_PERIODS + 1000)
    decoding = [[steps_us(engine, PERIOD) for engine in engines] for _ in range(NUM_PERIODS)]
    admitting = [[admission_us(engine, index) for engine in engines] for index in range(50)]
    return _medians(decoding), _medians(admitting)


def _medians(rows: list[list[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def print_cost(what: str, off_us: float, on_us: float, real_us: float | None) -> None:
    """One line; `real_us`: what the model takes for the same."""
    share = f"; {(on_us - off_us) / real_us:.4%} of the model's {real_us:.0f} us" if real_us else ""
    print(
        f"no hits, {what}: {on_us:.0f} us with the cache, {off_us:.0f} without, "
        f"ratio {on_us / off_us:.3f}{share}"
    )


def model_times(model: Path, threads: int) -> tuple[float, float, float]:
    """On the real model: a step of decodes in us, and the first token of a long prompt in s, cold
    and warm, the best of three each.
    """
    config = EngineConfig(model=model, max_model_len=2048, cpu_threads=threads)
    engine = make_engine(
        build_runner(config),
        max_num_batched_tokens=config.max_num_batched_tokens,
        prefix_caching=True,
    )
    first_token_s(engine, "warm-up", seed=0)
    pairs = [
        (first_token_s(engine, f"cold-{seed}", seed), first_token_s(engine, f"warm-{seed}", seed))
        for seed in range(1, 4)
    ]
    cold_s, warm_s = (min(times) for times in zip(*pairs, strict=True))
    start_decodes(engine, NUM_DECODES + 4)
    return min(steps_us(engine, 1) for _ in range(3)), cold_s, warm_s


def main() -> None:
    """Print costs and, of a model, savings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file or a folder; without it costs only")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    decoding, admitting = scheduling_costs()
    step_us = cold_us = None
    if arguments.model is not None:
        step_us, cold_s, warm_s = model_times(arguments.model, arguments.threads)
        cold_us = cold_s * 1e6
        print(
            f"first token of {PROMPT_TOKENS}: cold {cold_s * 1e3:.0f} ms, "
            f"warm {warm_s * 1e3:.0f} ms, ratio {warm_s / cold_s:.3f}"
        )
    print_cost(f"a step of {NUM_DECODES - 1} decodes", *decoding, step_us)
    print_cost(f"admitting {PROMPT_TOKENS} tokens beside them", *admitting, cold_us)


if __name__ == "__main__":
    main()
