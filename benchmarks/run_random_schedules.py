"""Random schedules on tiny real models, each answer held bit for bit against its lone run.

The suite runs some; this runs as many as it is told, and exits with status 1 if an answer differs.

    python -m benchmarks.run_random_schedules --schedules 2000

2000 of them take 168 s of one core: 25,046 requests, 243,284 steps, 401,072 tokens generated and
53,376 found in the cache, 4,389 of 8,456 guesses right, 22,389 preemptions, 20,359 of them forced,
3,225 aborts, 0 mismatches.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.native_engine.random_schedules import MODELS, RandomSchedules, Tally, tiny_runner


def run(model: str, seeds: range) -> Tally:
    """All schedules of one model."""
    with tempfile.TemporaryDirectory() as folder:
        schedules = RandomSchedules(tiny_runner(model, Path(folder)))
        for seed in seeds:
            schedules.run(seed)
    return schedules.tally


def main() -> None:
    """Share the schedules among the models; print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000, help="of all models together")
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    is_right = True
    for index, model in enumerate(MODELS):
        last = arguments.first_seed + arguments.schedules
        started_s = time.perf_counter()
        tally = run(model, range(arguments.first_seed + index, last, len(MODELS)))
        print(
            f"{model}: {tally.schedules} schedules in {time.perf_counter() - started_s:.0f} s: "
            f"{tally.requests} requests, {tally.steps} steps, {tally.tokens} tokens generated and "
            f"{tally.cached_tokens} found in the cache, {tally.accepted_tokens} of "
            f"{tally.draft_tokens} guesses right, {tally.preemptions} preemptions, "
            f"{tally.forced_preemptions} of them forced, {tally.aborts} aborts; "
            f"{len(tally.mismatches)} mismatches",
            *tally.mismatches,
            sep="\n",
        )
        is_right = is_right and not tally.mismatches
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
