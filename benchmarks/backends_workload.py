"""The workload of `bench_backends`: prompts and answers of mixed lengths, in three classes.

Lengths are log-uniform, as traffic's are: many short ones, a few long ones. In a chat answers are
about as long as what is asked (ShareGPT, which engines are often measured with: 161 tokens in, 338
out); where documents are asked about, prompts are three times as long.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.bench import FILLER, Asked

LENGTHS = {  # kind -> shortest and longest prompt, shortest and longest answer, in tokens
    "chat": ((16, 256), (8, 256)),
    "documents": ((16, 512), (4, 192)),
}
CHARS_PER_TOKEN = 4.6  # of FILLER, by SmolLM2's tokenizer
CLASSES = ("high", "normal", "normal", "low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request of the workload."""

    number: int
    priority: str  # high | normal | low: the plan it comes under
    prompt_tokens: int
    max_tokens: int


def jobs(kind: str, num_requests: int) -> list[Job]:
    """The same ones each time. kind: of `LENGTHS`."""
    choose = random.Random(0)
    prompts, answers = LENGTHS[kind]

    def length(low: int, high: int) -> int:
        return round(math.exp(choose.uniform(math.log(low), math.log(high))))

    return [
        Job(
            number=number,
            priority=choose.choice(CLASSES),
            prompt_tokens=length(*prompts),
            max_tokens=length(*answers),
        )
        for number in range(num_requests)
    ]


def requests(
    workload: list[Job], *, engine: str, keys: Mapping[str, str], run: int
) -> Iterator[Asked]:
    """The workload for one engine; `run` makes its prompts begin like no other run's."""
    for job in workload:
        num_chars = round(job.prompt_tokens * CHARS_PER_TOKEN)
        text = f"{run}.{job.number} " + FILLER * math.ceil(num_chars / len(FILLER))
        yield Asked(
            key=keys[job.priority],
            headers={"x-engine": engine},
            body={
                "model": "smollm2",
                "messages": [{"role": "user", "content": text[:num_chars]}],
                "max_tokens": job.max_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
