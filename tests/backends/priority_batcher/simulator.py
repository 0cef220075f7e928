"""TGI's rules of batching, step by step, on paper: lengths and budgets, no tokens and no blocks.

Written from the rules alone, and shares no code with the batcher. One class, no prefix cache. A job
is what a request comes to: the length of its prompt, how many tokens it asked for, and how many its
answer turns out to have. Everything is a list that is walked from its front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Rules:
    block_size: int
    num_blocks: int
    max_batch_prefill_tokens: int
    max_batch_total_tokens: int
    waiting_served_ratio: float
    max_waiting_tokens: int
    max_batch_size: int
    generation_length: int
    chunking: bool


@dataclass(slots=True, kw_only=True)
class Job:
    name: str
    prompt: int
    asked: int  # of tokens to generate
    drawn: int  # so many will be: fewer than it asked for if it stops
    generated: int = 0
    reserved_new: int = 0  # of this admission
    generated_here: int = 0
    input: int = 0  # what it began this admission with
    prefilled: int = 0  # of that


@dataclass(slots=True)
class Simulator:
    rules: Rules
    queue: list[Job] = field(default_factory=list)
    batch: list[Job] = field(default_factory=list)
    waiting_tokens: int = 0
    has_paused: bool = False
    calls: int = 0
    admissions: list[tuple[int, list[str]]] = field(default_factory=list)
    passes: list[list[tuple[str, int]]] = field(default_factory=list)  # who computed how many

    def arrive(self, job: Job) -> None:
        self.queue.append(job)

    def abort(self, name: str) -> None:
        self.queue = [job for job in self.queue if job.name != name]
        self.batch = [job for job in self.batch if job.name != name]

    def step(self, aborted_inside: list[str]) -> None:
        """One forward pass."""
        rules = self.rules
        if rules.chunking:
            computed = self.mixed()
        elif not self.batch:
            computed = self.next_batch(
                None, rules.max_batch_prefill_tokens, rules.max_batch_total_tokens
            )
            self.batch = [job for job, _ in computed]
            self.waiting_tokens = 1
            self.has_paused = False
        else:
            computed = self.concatenate_or_decode()
        self.passes.append([(job.name, count) for job, count in computed])
        for name in aborted_inside:
            self.abort(name)
        for job, count in computed:
            self.advance(job, count)

    def concatenate_or_decode(self) -> list[tuple[Job, int]]:
        rules = self.rules
        if not self.has_paused:
            min_size: int | None = math.floor(len(self.batch) * rules.waiting_served_ratio)
            if self.waiting_tokens >= rules.max_waiting_tokens:
                min_size = None
            new = self.next_batch(min_size, rules.max_batch_prefill_tokens, self.token_budget())
            if new:
                self.batch += [job for job, _ in new]
                self.waiting_tokens = 1
                self.has_paused = True
                return new
        self.has_paused = False
        self.waiting_tokens += 1
        return [(job, 1) for job in self.batch]

    def mixed(self) -> list[tuple[Job, int]]:
        """A token of each, what is left of a prompt as far as it goes, and then new ones."""
        computed: list[tuple[Job, int]] = []
        for job in self.batch:
            left = job.input - job.prefilled
            if left:
                spare = self.rules.max_batch_prefill_tokens - (len(self.batch) - 1)
                computed.append((job, min(left, max(spare, 1))))
            else:
                computed.append((job, 1))
        current = sum(count for _, count in computed)
        new = self.next_batch(
            None, max(0, self.rules.max_batch_prefill_tokens - current), self.token_budget()
        )
        self.batch += [job for job, _ in new]
        return computed + new

    def token_budget(self) -> int:
        reserved = sum(job.input + job.reserved_new for job in self.batch)
        return max(0, self.rules.max_batch_total_tokens - reserved)

    def blocks(self, job: Job) -> int:
        return math.ceil((job.input + job.reserved_new - 1) / self.rules.block_size)

    def next_batch(
        self, min_size: int | None, prefill_budget: int, token_budget: int
    ) -> list[tuple[Job, int]]:
        rules = self.rules
        self.calls += 1
        if min_size is not None and len(self.queue) < min_size:
            return []
        prefill_budget = math.ceil(prefill_budget / rules.block_size) * rules.block_size
        free = rules.num_blocks - sum(self.blocks(job) for job in self.batch)
        taken: list[tuple[Job, int]] = []
        prefill = total = 0
        while self.queue and len(self.batch) + len(taken) < rules.max_batch_size:
            job = self.queue[0]
            job.input = job.prompt + job.generated
            job.reserved_new = self.reservation(job)
            need = self.blocks(job)
            left = prefill_budget - prefill
            count = min(job.input, left) if rules.chunking else job.input
            over = count > left or count == 0
            if over or total + job.input + job.reserved_new > token_budget or need > free:
                break
            del self.queue[0]
            taken.append((job, count))
            prefill += count
            total += job.input + job.reserved_new
            free -= need
        if min_size is not None and len(taken) < min_size:
            self.queue = [job for job, _ in taken] + self.queue
            return []
        for job, _ in taken:
            job.prefilled = job.generated_here = 0
        if taken:
            self.admissions.append((self.calls, [job.name for job, _ in taken]))
        return taken

    def reservation(self, job: Job) -> int:
        """A part, if what comes of it can be prefilled again."""
        left, part = job.asked - job.generated, self.rules.generation_length
        can_go_on = self.rules.chunking or job.input + part <= self.rules.max_batch_prefill_tokens
        return part if part < left and can_go_on else left

    def advance(self, job: Job, count: int) -> None:
        if job not in self.batch:
            return
        if job.prefilled < job.input:
            job.prefilled += count
            if job.prefilled < job.input:
                return
        job.generated += 1
        job.generated_here += 1
        if job.generated == job.drawn:
            self.batch.remove(job)
        elif job.generated_here == job.reserved_new:
            self.batch.remove(job)
            self.queue.append(job)
