"""How many engine steps a second the property test of the engine runs and checks.

Counts the steps that reached the runner, over all the time that takes, Hypothesis's own included;
the more there are, the rarer the interleavings that a minute of testing finds.

    python -m benchmarks.bench_engine_machine --examples 300

6,200 and 6,600 a second on one of 2 cores, in two runs of 150 examples with little else running.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.native_engine.test_engine_machine import EngineMachine

totals: Counter[str] = Counter()


class CountedMachine(EngineMachine):
    """The same, and adds up at the end what each example did."""

    def teardown(self) -> None:
        """Finish the example first: its last steps count as well."""
        super().teardown()
        if self.is_sound:
            stats = self.engine.stats()
            totals.update(
                examples=1,
                steps=len(self.runner.batches),
                sequences=sum(len(batch.sequences) for batch in self.runner.batches),
                requests=len(self.runner.requests),
                tokens=stats.generation_tokens_total,
                cached=stats.prefix_cache_hits,
                preemptions=stats.num_preemptions,
            )


def main() -> None:
    """Run the machine over fresh examples, and print what that came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=300)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of the steps that fail on purpose
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    run_state_machine_as_test(
        CountedMachine,
        settings=settings(
            EngineMachine.TestCase.settings, max_examples=arguments.examples, database=None
        ),
    )
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    steps = totals["steps"]
    print(
        f"{totals['examples']} examples: {steps} steps in {wall_s:.1f} s, {steps / wall_s:.0f} a "
        f"second, {steps / cpu_s:.0f} a second of CPU time, of {totals['sequences'] / steps:.2f} "
        f"sequences each; {totals['requests']} requests, {totals['tokens']} tokens generated and "
        f"{totals['cached']} found in the cache, {totals['preemptions']} preemptions"
    )


if __name__ == "__main__":
    main()
