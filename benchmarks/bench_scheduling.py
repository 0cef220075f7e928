"""What a long prompt costs those who are being answered, and what sparing them costs the prompt.

Eight sequences decode; then a prompt of 1,000 tokens comes. Printed are the steps until its first
token, each a gap between two tokens of the eight, for several token budgets and targets.

    python -m benchmarks.bench_scheduling --model .turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf

`docs/decisions/0010-steps-are-kept-short-by-measuring-them.md` has figures.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.types import EngineRequest, SamplingParams

NUM_DECODES = 8
PROMPT_TOKENS = 1000
SETTINGS = (  # max_num_batched_tokens, target_itl_s
    (64, 0.0),
    (128, 0.0),
    (512, 0.0),
    (128, 0.15),
    (128, 0.2),
    (128, 0.25),
    (128, 0.3),
    (512, 0.25),
)


def request(name: str, num_tokens: int, max_tokens: int, seed: int) -> EngineRequest:
    """Of `num_tokens` random tokens, to its full length."""
    choose = random.Random(seed)
    return EngineRequest(
        request_id=name,
        prompt_token_ids=tuple(choose.randrange(1000, 40_000) for _ in range(num_tokens)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
    )


def timed_step(engine: Engine) -> tuple[float, set[str]]:
    """Seconds, and who got a token."""
    started_s = time.perf_counter()
    outputs = engine.step()
    return time.perf_counter() - started_s, {output.request_id for output in outputs}


def measure(runner: ModelRunner, *, budget: int, target_s: float, seed: int) -> None:
    """Print one line. The engine has seen a long prompt and decodes before, as in real life."""
    engine = Engine(
        runner,
        EngineConfig(model=Path("bench"), max_num_batched_tokens=budget, target_itl_s=target_s),
        clock=time.monotonic,
    )
    engine.add(request("warm-up", PROMPT_TOKENS // 2, 2, seed))
    while engine.has_work:
        engine.step()
    for index in range(NUM_DECODES):
        engine.add(request(f"decode {index}", 40, 1000, seed + 1 + index))
    for _ in range(12):
        engine.step()
    decode_s = statistics.median(timed_step(engine)[0] for _ in range(8))
    engine.add(request("long", PROMPT_TOKENS, 2, seed + 100))
    steps: list[float] = []
    served: set[str] = set()
    while "long" not in served:
        seconds, served = timed_step(engine)
        steps.append(seconds)
    print(
        f"budget {budget:4d}, target {target_s:4.2f} s: a step of decodes takes "
        f"{decode_s * 1e3:4.0f} ms; beside the prompt the median is "
        f"{statistics.median(steps) * 1e3:4.0f} ms and the longest {max(steps) * 1e3:4.0f} ms; "
        f"first token after {sum(steps):5.2f} s and {len(steps)} steps",
        flush=True,
    )


def main() -> None:
    """Print a line per setting and round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file or a folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    runner = build_runner(
        EngineConfig(
            model=arguments.model,
            max_model_len=2048,
            max_num_batched_tokens=512,
            cpu_threads=arguments.threads,
        )
    )
    for number in range(arguments.rounds):
        for index, (budget, target_s) in enumerate(SETTINGS):
            seed = 10_000 * number + 1000 * index
            measure(runner, budget=budget, target_s=target_s, seed=seed)


if __name__ == "__main__":
    main()
