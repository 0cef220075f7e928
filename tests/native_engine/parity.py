"""Our decoder and transformers' on one tiny random model, float32, over a prompt of a few hundred
tokens: how far the logits are apart, and whether the greedy tokens are the same.

transformers is run twice, with its two implementations of attention. How far those are apart is
what float32 leaves open, and so the yardstick for ours. It computes the angles of the rotary
embedding in float32, which at position 320 is off by up to 2e-5, and ours in float64; so ours is
run twice too, the second time with transformers' angles. The prompt is longer than every window
and than the context that a scaled rotary embedding was stretched from.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from kernels.paged_attention import AttentionMetadata
from native_engine.config import EngineConfig
from native_engine.loader.load import load_model
from native_engine.model_runner import build_runner
from native_engine.models.config import ModelConfig
from native_engine.models.decoder import StepInputs
from native_engine.models.rotary import RotaryTables, rotary_tables
from tests.native_engine.checkpoints import SIZES, model_gguf, tiny_model, write_folder
from tests.native_engine.driving import DrivenSequence, drive
from tests.native_engine.reference import most_likely_after, prompt_logits

PROMPT_TOKENS = 320
GREEDY_TOKENS = 32
CHUNK = 96  # prompts are computed in chunks of it
BLOCK_SIZE = 16
ORIGINAL = 64  # the context before it was stretched
FACTOR = 8.0
VOCAB_SIZE = 512

LLAMA = {"model_type": "llama", "max_position_embeddings": 512}
MISTRAL = {"model_type": "mistral", "sliding_window": 48, "max_position_embeddings": 512}
QWEN2 = {"model_type": "qwen2", "rope_theta": 1e6, "max_position_embeddings": 512}
QWEN3 = {
    "model_type": "qwen3",
    "head_dim": 32,
    "rope_theta": 1e6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 1}
GEMMA3 = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 48,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}


def scaled(
    kind: str, settings: Mapping[str, Any] = LLAMA, *, theta: float = 1e4, **more: Any
) -> dict[str, Any]:
    """The model with a rotary embedding stretched from `ORIGINAL` tokens."""
    rope = {"rope_type": kind, "rope_theta": theta, "factor": FACTOR, **more}
    return {**settings, "rope_parameters": rope}


ORIGINALLY: Mapping[str, Any] = {"original_max_position_embeddings": ORIGINAL}
LLAMA3: Mapping[str, Any] = {**ORIGINALLY, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

CASES: Mapping[str, Mapping[str, Any]] = {
    "Llama 2": LLAMA,
    "Llama, biases, tied": {
        **LLAMA,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "Llama, linear": {**scaled("linear"), "max_position_embeddings": ORIGINAL},
    "Llama, dynamic": scaled("dynamic"),
    "Llama 3, llama3": scaled("llama3", theta=5e5, **LLAMA3),
    "Llama, yarn": {**scaled("yarn", **ORIGINALLY), "max_position_embeddings": ORIGINAL},
    "Llama, yarn, own factor": scaled("yarn", **ORIGINALLY, attention_factor=0.9),
    "Mistral, window 48": MISTRAL,
    "Mistral, no window": {**MISTRAL, "sliding_window": None},
    "Qwen2": QWEN2,
    "Qwen2, yarn": scaled("yarn", QWEN2, theta=1e6, **ORIGINALLY),
    "Qwen2, window from layer 1": {**QWEN2, **WINDOWS},
    "Qwen3": QWEN3,
    "Qwen3, yarn": scaled("yarn", QWEN3, theta=1e6, **ORIGINALLY),
    "Gemma 3": GEMMA3,
    "Gemma 3, own scale": {**GEMMA3, "query_pre_attn_scalar": 20, "head_dim": 16},
    "Gemma 3, linear": {
        **GEMMA3,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": FACTOR},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}
ONLY_FOLDERS = ("Llama, dynamic", "Gemma 3, own scale")  # GGUF has no key for these


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The largest over all positions and tokens, of the largest logit."""

    folder: float
    gguf: float | None  # None: the format cannot say it
    same_angles: float  # the folder's, with transformers' angles
    yardstick: float  # between transformers' own implementations of attention


def make_model(settings: Mapping[str, Any], seed: int = 0) -> PreTrainedModel:
    """The case's model, random."""
    sizes = {**SIZES, "vocab_size": VOCAB_SIZE, **settings}
    return tiny_model(AutoConfig.for_model(**sizes), seed)


def files(name: str, model: PreTrainedModel, folder: Path) -> dict[str, Path]:
    """The model in every kind of file that can hold it."""
    written = {"folder": write_folder(model, folder / "folder")}
    if name not in ONLY_FOLDERS:
        written["gguf"] = model_gguf(model, folder / "model.gguf")
    return written


def random_prompt(seed: int = 0) -> list[int]:
    """Of `PROMPT_TOKENS`."""
    choose = random.Random(seed)
    return [choose.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)]


def their_angles(model: PreTrainedModel, config: ModelConfig) -> tuple[RotaryTables, ...]:
    """transformers' own tables, of each layer."""
    positions = torch.arange(PROMPT_TOKENS)[None]

    def tables(layer: int) -> RotaryTables:
        kind = ["full_attention", "sliding_attention"][config.window(layer) > 0]
        own = (kind,) if config.window_rope else ()
        cos, sin = model.model.rotary_emb(torch.zeros(1), positions, *own)
        half = config.head_dim // 2
        return RotaryTables(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())

    return tuple(tables(layer) for layer in range(config.num_layers))


def our_logits(
    path: Path, prompt: Sequence[int], angles_of: PreTrainedModel | None = None
) -> Tensor:
    """`[len(prompt), vocab_size]` float32, of the decoder as the engine runs it: chunk after chunk
    over a paged cache, whose blocks lie scattered. angles_of: with its angles, not our own.
    """
    model = load_model(path, dtype=torch.float32, device=torch.device("cpu"))
    config = model.config
    table = list(range(-(-len(prompt) // BLOCK_SIZE)))
    random.Random(0).shuffle(table)
    shape = (2, len(table), config.num_kv_heads, BLOCK_SIZE, config.head_dim)
    caches = [(cache[0], cache[1]) for cache in torch.zeros(config.num_layers, *shape)]
    rotary = rotary_tables(config, max_positions=len(prompt), device=model.device)
    if angles_of is not None:
        rotary = their_angles(angles_of, config)
    logits = []
    with torch.inference_mode():
        for start, stop in pairwise([*range(0, len(prompt), CHUNK), len(prompt)]):
            positions = torch.arange(start, stop)
            slots = torch.tensor(table)[positions // BLOCK_SIZE] * BLOCK_SIZE
            inputs = StepInputs(
                token_ids=torch.tensor(prompt[start:stop]),
                positions=positions,
                slot_mapping=slots + positions % BLOCK_SIZE,
                metadata=AttentionMetadata.build(
                    query_lens=[stop - start],
                    context_lens=[stop],
                    block_tables=[table],
                    device=model.device,
                ),
            )
            logits.append(model.logits(model.forward(inputs, caches, rotary)))
    return torch.cat(logits)


def differences(model: PreTrainedModel, paths: Mapping[str, Path]) -> Difference:
    """Between ours from either file, and transformers."""
    prompt = random_prompt()
    model.set_attn_implementation("eager")
    eager = prompt_logits(model, prompt)
    model.set_attn_implementation("sdpa")
    theirs = prompt_logits(model, prompt)
    scale = theirs.abs().max()

    def relative(logits: Tensor) -> float:
        return float((logits - theirs).abs().max() / scale)

    return Difference(
        folder=relative(our_logits(paths["folder"], prompt)),
        gguf=relative(our_logits(paths["gguf"], prompt)) if "gguf" in paths else None,
        same_angles=relative(our_logits(paths["folder"], prompt, angles_of=model)),
        yardstick=relative(eager),
    )


def num_equal_greedy_tokens(model: PreTrainedModel, path: Path) -> int:
    """How many of `GREEDY_TOKENS` of the engine are transformers' as well, from the first on."""
    runner = build_runner(EngineConfig(model=path, kv_cache_bytes=1 << 24, cpu_threads=1))
    sequence = DrivenSequence(random_prompt(), GREEDY_TOKENS, chunk=CHUNK)
    drive(runner, [sequence])
    theirs = most_likely_after(model, sequence.prompt, sequence.token_ids)
    equal = [ours == their for ours, their in zip(sequence.token_ids, theirs, strict=True)]
    return [*equal, False].index(False)
