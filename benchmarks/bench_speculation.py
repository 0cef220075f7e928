"""What speculation gains on answers that copy from their prompt, and costs on plain chat.

One model and one KV cache, two engines over it, with and without speculation, which answer the same
requests in turn, so that a busy machine slows both alike. Of each pair of runs the ratio of tokens
per second counts, once by the clock and once by the processor time of the one thread, which others
on the machine disturb less; printed are the median of the pairs and their range. The answers are
compared token by token.

    python -m benchmarks.bench_speculation --model .turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf

Figures are in `docs/decisions/0011-prompt-lookup-drafts.md`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from backends.text.tokenizer import load_tokenizer
from native_engine.config import EngineConfig, Speculation
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.types import EngineRequest, SamplingParams

CHAT = (
    "What is the capital of France, and what is it known for?",
    "Write a short story about a lighthouse keeper.",
    "Explain how a bicycle stays upright.",
    "Give me three ideas for dinner with rice.",
    "How do I learn to play the guitar?",
    "Tell me about the history of the printing press.",
    "Write a Python function that sorts a list.",
    "Why is the sky blue?",
)
COPY = (
    "Repeat this text word for word:\n\n",
    "Correct the spelling of this text and write it out whole:\n\n",
    "Put quotation marks around this text:\n\n",
    "Quote the following text:\n\n",
)
COPIED_CHARACTERS = 900  # about 220 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run: all requests together, from the first add() to the last token."""

    answers: dict[str, list[int]]
    tokens_per_s: float
    tokens_per_cpu_s: float


def prompts(model: Path, kind: str, num_clients: int, round_index: int) -> list[list[int]]:
    """Token ids in SmolLM2's chat format; other texts in each round."""
    tokenizer = load_tokenizer(model)
    text = Path("ARCHITECTURE.md").read_text()
    encoded = []
    for index in range(round_index * num_clients, (round_index + 1) * num_clients):
        asked = CHAT[index % len(CHAT)]
        if kind == "copy":
            first = 700 * (index % 6)
            asked = COPY[index % len(COPY)] + text[first : first + COPIED_CHARACTERS]
        chat = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        encoded.append(tokenizer.encode(chat, add_special_tokens=False))
    return encoded


def make_engine(runner: ModelRunner, config: EngineConfig, speculation: Speculation) -> Engine:
    """Without a prefix cache: both would find in it what the other's run left."""
    return Engine(
        runner,
        EngineConfig(model=config.model, prefix_caching=False, speculation=speculation),
        clock=time.monotonic,
    )


def run_once(engine: Engine, encoded: list[list[int]], temperature: float, tokens: int) -> Outcome:
    """Decoding alone is timed, from when all have their first token: prefills are the same."""
    for index, prompt in enumerate(encoded):
        sampling = SamplingParams(
            max_tokens=tokens, temperature=temperature, seed=index, eos_token_ids=(2,)
        )
        engine.add(
            EngineRequest(request_id=str(index), prompt_token_ids=tuple(prompt), sampling=sampling)
        )
    answers: dict[str, list[int]] = {str(index): [] for index in range(len(encoded))}
    started_s, started_cpu_s, num_before = time.perf_counter(), time.process_time(), 0
    while engine.has_work:
        for output in engine.step():
            if output.token is not None:
                answers[output.request_id].append(output.token.token_id)
        if not all(answers.values()):
            started_s, started_cpu_s = time.perf_counter(), time.process_time()
            num_before = sum(map(len, answers.values()))
    num_tokens = sum(map(len, answers.values())) - num_before
    return Outcome(
        answers=answers,
        tokens_per_s=num_tokens / (time.perf_counter() - started_s),
        tokens_per_cpu_s=num_tokens / (time.process_time() - started_cpu_s),
    )


def spread(ratios: list[float]) -> str:
    """Their median and range."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def print_ratios(arguments: argparse.Namespace) -> None:
    """One line for each number of clients, kind of prompt and temperature."""
    config = EngineConfig(model=arguments.model, max_model_len=2048, cpu_threads=1)
    runner = build_runner(config)
    for num_clients, kind, temperature in itertools.product(
        arguments.clients, ("chat", "copy"), (0.0, 0.7)
    ):
        off = make_engine(runner, config, "off")
        on = make_engine(runner, config, "prompt_lookup")
        by_clock, by_cpu = [], []
        for index in range(arguments.rounds):
            encoded = prompts(arguments.model, kind, num_clients, index)
            outcomes = {
                engine is on: run_once(engine, encoded, temperature, arguments.tokens)
                for engine in ((off, on) if index % 2 else (on, off))
            }
            if outcomes[True].answers != outcomes[False].answers:
                raise SystemExit(f"{kind}, {num_clients} clients: the answers differ")
            by_clock.append(outcomes[True].tokens_per_s / outcomes[False].tokens_per_s)
            by_cpu.append(outcomes[True].tokens_per_cpu_s / outcomes[False].tokens_per_cpu_s)
        stats = on.stats()
        print(
            f"{kind}, {num_clients} clients, temperature {temperature}: on/off {spread(by_clock)} "
            f"by the clock, {spread(by_cpu)} by the processor, {stats.num_accepted_tokens} of "
            f"{stats.num_draft_tokens} drafts accepted, {stats.generation_tokens_total} tokens",
            flush=True,
        )


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file of SmolLM2")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=100, help="per answer")
    print_ratios(parser.parse_args())


if __name__ == "__main__":
    main()
