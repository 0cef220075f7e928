from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from kernels.choices import Implementation
from kernels.cpu.linear import PackedMatrix
from kernels.dispatch import chosen_implementations
from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.errors import EngineError
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.sampler import NonFiniteLogits
from native_engine.types import (
    EngineRequest,
    FinishReason,
    LogitRules,
    SampledToken,
    SamplingParams,
    ScheduledSequence,
    SequenceResult,
    StepBatch,
    TokenHistory,
)
from tests.native_engine.checkpoints import model_gguf, tiny_llama, write_folder
from tests.native_engine.driving import GREEDY, DrivenSequence, drive
from tests.native_engine.harness import drain
from tests.native_engine.peeking import decoder
from tests.native_engine.reference import greedy_tokens, prompt_logits, transformers_model
from tests.native_engine.test_logit_rules import expected_row

SMOLLM2 = Path(".turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf")
VOCAB_SIZE = 97
ALL_LOGPROBS = replace(GREEDY, num_logprobs=VOCAB_SIZE)
SHAPES: list[dict[str, Any]] = [
    {},
    {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48},
    {"tie_word_embeddings": True, "num_key_value_heads": 4},
    {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}},
    {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
]


def runner_for(model: LlamaForCausalLM, folder: Path, **options: Any) -> ModelRunner:
    settings = {"kv_cache_bytes": 1 << 22, "cpu_threads": 1, **options}
    return build_runner(EngineConfig(model=write_folder(model, folder), **settings))


def random_prompts(*lengths: int) -> list[list[int]]:
    choose = random.Random(sum(lengths))
    return [[choose.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def answer(
    runner: ModelRunner,
    prompt: list[int],
    num_tokens: int,
    *,
    sampling: SamplingParams = GREEDY,
    chunk: int = 1000,
) -> list[SampledToken]:
    sequence = DrivenSequence(prompt, num_tokens, sampling=sampling, chunk=chunk)
    drive(runner, [sequence])
    return sequence.outputs


@pytest.mark.parametrize(("dtype", "expected"), [("float32", "c"), ("bfloat16", "torch")])
def test_the_table_chooses_the_products_of_a_model_when_it_is_loaded(
    tmp_path: Path, dtype: str, expected: Implementation
) -> None:
    """All matrices or none are packed, whichever of their widths the table was asked for."""
    model = tiny_llama(seed=1, num_attention_heads=6, num_key_value_heads=2, hidden_size=48)
    runner = runner_for(model, tmp_path, dtype=dtype)
    of_layer, head = decoder(runner).matrices
    assert {isinstance(m, PackedMatrix) for m in (*of_layer, head)} == {expected == "c"}
    chosen = chosen_implementations()["product"]
    for width in (48, model.config.intermediate_size):
        assert chosen["cpu", getattr(torch, dtype), width].implementation == expected


@pytest.mark.parametrize("overrides", SHAPES)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    tmp_path: Path, overrides: dict[str, Any]
) -> None:
    """L-ROPE-THETA, L-TIED-EMBED: alone in one chunk, in chunks, and batched with others."""
    model = tiny_llama(seed=1, **overrides)
    runner = runner_for(model, tmp_path)
    prompts = random_prompts(1, 15, 16, 17, 40)
    expected = [greedy_tokens(model, prompt, 32) for prompt in prompts]
    for chunk in (1000, 7):
        sequences = [DrivenSequence(prompt, 32, chunk=chunk) for prompt in prompts]
        drive(runner, sequences)
        assert [sequence.token_ids for sequence in sequences] == expected
        for prompt, tokens in zip(prompts, expected, strict=True):
            outputs = answer(runner, prompt, 32, chunk=chunk)
            assert [token.token_id for token in outputs] == tokens
    (first,) = answer(runner, prompts[-1], 1, sampling=ALL_LOGPROBS)
    theirs = torch.log_softmax(prompt_logits(model, prompts[-1])[-1], dim=-1)
    ours = torch.tensor([value for _, value in sorted(first.top_logprobs)])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gguf_and_folder_answer_alike(tmp_path: Path) -> None:
    model = tiny_llama(seed=2)
    gguf = model_gguf(model, tmp_path / "model.gguf")
    options = EngineConfig(model=gguf, kv_cache_bytes=1 << 22, cpu_threads=1)
    (prompt,) = random_prompts(20)
    from_gguf = answer(build_runner(options), prompt, 8, sampling=ALL_LOGPROBS)
    from_folder = answer(runner_for(model, tmp_path / "hf"), prompt, 8, sampling=ALL_LOGPROBS)
    assert from_gguf == from_folder


@pytest.mark.parametrize("threads", [1, 2])
def test_logits_are_equal_bit_for_bit_alone_and_in_a_batch(tmp_path: Path, threads: int) -> None:
    """All log-probabilities of every step: batches that shrink, prompts in chunks or whole."""
    runner = runner_for(tiny_llama(seed=3), tmp_path, cpu_threads=threads)
    assert runner.deterministic
    prompts = random_prompts(1, 3, 9, 16, 30, 41)
    sampled = replace(ALL_LOGPROBS, temperature=1.0, seed=5)
    sequences = [
        DrivenSequence(prompt, 6 + 5 * index, sampling=sampled, chunk=8)
        for index, prompt in enumerate(prompts)
    ]
    drive(runner, sequences)
    for sequence in sequences:
        alone = answer(runner, [*sequence.prompt], sequence.num_tokens, sampling=sampled, chunk=8)
        assert sequence.outputs == alone


def test_a_seed_gives_the_same_tokens_after_recomputation(tmp_path: Path) -> None:
    """E-SEED: what a preempted sequence goes through, prompt and answer computed anew."""
    runner = runner_for(tiny_llama(seed=4), tmp_path)
    sampling = replace(GREEDY, temperature=1.0, seed=99)
    (prompt,) = random_prompts(10)
    tokens = [token.token_id for token in answer(runner, prompt, 20, sampling=sampling)]
    for kept in (1, 7, 19):
        resumed = answer(runner, prompt + tokens[:kept], 20 - kept, sampling=sampling)
        assert [token.token_id for token in resumed] == tokens[kept:]
    other = answer(runner, prompt, 20, sampling=replace(sampling, seed=100))
    assert [token.token_id for token in other] != tokens


@pytest.mark.parametrize(
    "rules",
    [
        LogitRules(presence_penalty=2.0),
        LogitRules(frequency_penalty=1.5),
        LogitRules(repetition_penalty=2.0),
        LogitRules(repetition_penalty=1.5, frequency_penalty=1.0, presence_penalty=0.5),
    ],
)
def test_penalties_count_what_they_should_at_every_step(tmp_path: Path, rules: LogitRules) -> None:
    """E-PENALTY-SCOPE: eight steps against transformers' logits and plain arithmetic."""
    model = tiny_llama(seed=7)
    prompt = [5, 9, 5, 9, 5, 9]
    sampling = replace(GREEDY, rules=rules)
    tokens = answer(runner_for(model, tmp_path), prompt, 8, sampling=sampling, chunk=4)
    known = list(prompt)
    for token in tokens:
        logits = prompt_logits(model, known)[-1].tolist()
        history = TokenHistory(token_ids=known, num_prompt_tokens=len(prompt))
        row = expected_row(logits, sampling, rules, history)
        assert token.token_id == row.index(max(row))
        known.append(token.token_id)


def engine_for(runner: ModelRunner) -> Engine:
    return Engine(
        runner,
        EngineConfig(model=Path("m"), max_num_seqs=8, max_num_batched_tokens=64, max_waiting=8),
        clock=lambda: 0.0,
    )


def test_penalties_and_seeds_do_not_notice_a_preemption(tmp_path: Path) -> None:
    """E-PREEMPT: 24 blocks of 16 for eight requests of 40 + 60 tokens; each equals its lone run."""
    runner = runner_for(tiny_llama(seed=8), tmp_path, kv_cache_bytes=24 * 8192)
    assert runner.num_blocks == 24
    rules = LogitRules(
        repetition_penalty=1.2, frequency_penalty=0.7, bad_words=((3, 4), (5,)), min_tokens=50
    )
    requests = [
        EngineRequest(
            request_id=str(index),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(
                max_tokens=60,
                temperature=float(index >= 6),
                seed=index,
                eos_token_ids=(1, 2, 3),
                rules=rules if index % 2 else None,
            ),
        )
        for index, prompt in enumerate(random_prompts(*[40] * 8))
    ]
    engine = engine_for(runner)
    for prompt in random_prompts(*[5] * 8):  # it learns to expect short answers, and lets all in
        engine.add(
            EngineRequest(
                request_id=f"short {len(engine._sequences)}",
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(max_tokens=1),
            )
        )
    drain(engine)
    for request in requests:
        engine.add(request)
    together = drain(engine)
    assert engine.stats().num_preemptions > 0
    for request in requests:
        alone = engine_for(runner)
        alone.add(request)
        assert drain(alone).of(request.request_id) == together.of(request.request_id)


def test_eos_comes_right_after_min_tokens_if_that_is_all_the_model_wants(tmp_path: Path) -> None:
    """E-MIN-TOKENS: a bias of 100 on either of two EOS ids, min_tokens 4: five tokens."""
    engine = engine_for(runner_for(tiny_llama(seed=9), tmp_path))
    for eos in (20, 21):
        rules = LogitRules(min_tokens=4, logit_bias=((eos, 100.0),))
        sampling = replace(GREEDY, max_tokens=32, eos_token_ids=(20, 21), rules=rules)
        engine.add(EngineRequest(request_id=str(eos), prompt_token_ids=(1, 2), sampling=sampling))
    transcript = drain(engine)
    for eos in (20, 21):
        tokens, reason = transcript.of(str(eos))
        assert (len(tokens), tokens[-1], reason) == (5, eos, FinishReason.EOS)


def test_ids_the_tokenizer_does_not_know_are_never_seen(tmp_path: Path) -> None:
    """L-VOCAB-PADDED."""
    runner = runner_for(tiny_llama(seed=5), tmp_path, num_token_ids=60)
    assert runner.vocab_size == 60
    hot = replace(ALL_LOGPROBS, temperature=5.0)
    (prompt,) = random_prompts(5)
    for seed in range(10):
        for token in answer(runner, prompt, 40, sampling=replace(hot, seed=seed)):
            assert token.token_id < 60
            assert sorted(token_id for token_id, _ in token.top_logprobs) == list(range(60))


def test_a_tokenizer_larger_than_the_embedding_is_cut_down_to_it(tmp_path: Path) -> None:
    """L-VOCAB-PADDED."""
    assert runner_for(tiny_llama(), tmp_path, num_token_ids=200).vocab_size == VOCAB_SIZE


def test_a_step_without_samples_returns_none(tmp_path: Path) -> None:
    runner = runner_for(tiny_llama(), tmp_path)
    share = ScheduledSequence(
        request_id="r", token_ids=[1, 2], start=0, block_table=[3], sampling=GREEDY, sample=False
    )
    assert runner.execute(StepBatch(sequences=(share,))) == [SequenceResult()]
    assert runner.execute(StepBatch(sequences=())) == []


def test_damaged_weights_fail_the_step_not_the_process(tmp_path: Path) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    runner = runner_for(model, tmp_path)
    with pytest.raises(NonFiniteLogits, match="damaged"):
        answer(runner, [1, 2, 3], 1)


def test_runs_in_bfloat16_near_to_float32(tmp_path: Path) -> None:
    model = tiny_llama(seed=6)
    (prompt,) = random_prompts(12)
    logprobs = []
    for dtype in ("float32", "bfloat16"):
        runner = runner_for(model, tmp_path, dtype=dtype)
        (token,) = answer(runner, prompt, 1, sampling=ALL_LOGPROBS)
        logprobs.append(torch.tensor([value for _, value in sorted(token.top_logprobs)]))
    torch.testing.assert_close(logprobs[0], logprobs[1], rtol=0.05, atol=0.3)


def test_says_what_it_runs(tmp_path: Path) -> None:
    runner = runner_for(tiny_llama(), tmp_path, block_size=32, max_model_len=100)
    assert runner.max_model_len == 100
    assert runner.block_size == 32
    assert runner.num_blocks == (1 << 22) // (2 * 2 * 32 * 32 * 4)
    assert "llama float32 on cpu, 1 threads" in runner.description
    assert runner.description.endswith(": deterministic")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 257}, "max_model_len is 257, but .* was made for 256"),
        ({"kv_cache_bytes": 1000}, "set kv_cache_bytes to at least"),
        ({"device": "cuda:99"}, "device is cuda:99, but torch finds"),
    ],
)
def test_refuses_what_the_model_or_the_machine_cannot_do(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        runner_for(tiny_llama(), tmp_path, **options)


def smollm2_runner(cpu_threads: int) -> ModelRunner:
    return build_runner(EngineConfig(model=SMOLLM2, max_model_len=256, cpu_threads=cpu_threads))


SMOLLM2_PROMPTS = [
    [504, 3575, 282, 4649, 314],
    list(range(1000, 1040)),
    [1, 4093, 198, 19556, 28, 638, 359, 346, 47, 2, 198, 1, 520, 9531, 198],
]


@pytest.mark.weights
def test_smollm2_answers_as_in_transformers() -> None:
    runner = smollm2_runner(cpu_threads=1)
    model = transformers_model(runner._model)
    for prompt in SMOLLM2_PROMPTS:
        tokens = [token.token_id for token in answer(runner, prompt, 16, chunk=11)]
        assert tokens == greedy_tokens(model, prompt, 16)


@pytest.mark.weights
def test_smollm2_computes_the_same_bits_alone_and_in_a_batch() -> None:
    """On matrices of real size, at which libraries do change their algorithms."""
    runner = smollm2_runner(cpu_threads=2)
    assert runner.deterministic
    sampling = replace(GREEDY, num_logprobs=20)
    sequences = [
        DrivenSequence(prompt * repeated, 4, sampling=sampling, chunk=9 * repeated)
        for prompt in SMOLLM2_PROMPTS
        for repeated in (1, 2, 4)
    ]
    drive(runner, sequences)
    for sequence in sequences:
        assert sequence.outputs == answer(runner, [*sequence.prompt], 4, sampling=sampling)
