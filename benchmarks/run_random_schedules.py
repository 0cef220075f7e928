"""Random schedules on tiny real models, each answer held bit for bit against its lone run.

The suite runs some; this runs as many as it is told, and exits with status 1 if an answer differs.

    python -m benchmarks.run_random_schedules --schedules 2000

2000 of them take 221 s of one core: 25,096 requests, 218,507 steps, 326,467 tokens generated,
130,513 of prompts told and 41,408 found in the cache, 2,228 of 5,604 guesses right, 20,456
preemptions, 18,911 of them forced, 2,878 aborts, 0 mismatches.
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
            f"{tally.requests} requests, {tally.steps} steps, {tally.tokens} tokens generated, "
            f"{tally.scored_tokens} of prompts told and {tally.cached_tokens} found in the cache, "
            f"{tally.accepted_tokens} of {tally.draft_tokens} guesses right, "
            f"{tally.preemptions} preemptions, {tally.forced_preemptions} of them forced, "
            f"{tally.aborts} aborts; "
            f"{len(tally.mismatches)} mismatches",
            *tally.mismatches,
            sep="\n",
        )
        is_right = is_right and not tally.mismatches
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
