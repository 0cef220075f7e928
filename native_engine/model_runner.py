"""The device side of the native engine: one model, its KV cache, one forward pass when told.

Turns a `StepBatch` into tensors, runs the decoder, and samples the rows that are due. Keeps nothing
of a sequence but what lies in the KV blocks it is told to use. Not thread-safe. Knows nothing of
scheduling, and trusts the batch it is given.

Products are ours where there is a C compiler; elsewhere their rows are padded, as
`batch_invariance` found necessary. Either way a sequence's tokens do not depend on what else is in
the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch

from kernels.copy_blocks import copy_blocks
from kernels.dispatch import choose
from kernels.paged_attention import AttentionMetadata
from native_engine.batch_invariance import InvariantProduct, find_invariant_product
from native_engine.config import RunnerConfig
from native_engine.errors import EngineError
from native_engine.kv_memory import (
    automatic_cache_bytes,
    free_memory_bytes,
    num_blocks_for,
    num_cache_blocks,
)
from native_engine.loader.load import load_model
from native_engine.machine import available_cores
from native_engine.models.decoder import Decoder, StepInputs
from native_engine.models.rotary import rotary_tables
from native_engine.noise import uniform
from native_engine.prompt_logprobs import SLICE_ROWS, score_prompts
from native_engine.sampler import SamplingRow, sample
from native_engine.types import ScheduledSequence, SequenceResult, StepBatch, TokenHistory

PADDING_SLOT = -1

SPARED_CORES = 1
"""Left to whoever feeds the engine. SmolLM2, one step of one sequence on 2 cores: 2 threads take
77 ms where 1 takes 117, but beside one busy process 287 where 1 takes 118, since each parallel
section waits for the thread that was descheduled."""


class ModelRunner:
    """A `Runner`. Built once per engine; holds the KV cache for as long as it lives."""

    def __init__(
        self,
        model: Decoder,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        vocab_size: int,
        product: InvariantProduct,
    ) -> None:
        """vocab_size: ids at or above it are never sampled; at most the rows of the embedding."""
        self._model = model
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._product = product
        model.product = product
        self._rotary = rotary_tables(model.config, max_positions=max_model_len, device=model.device)
        config = model.config
        shape = (2, num_blocks, config.num_kv_heads, block_size, config.head_dim)
        layers = [
            torch.zeros(shape, dtype=model.dtype, device=model.device)
            for _ in range(config.num_layers)
        ]
        self._kv_cache = [(layer[0], layer[1]) for layer in layers]

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def deterministic(self) -> bool:
        return self._product.is_invariant

    @property
    def dtype(self) -> str:
        """Of weights and KV cache, as torch spells it without its prefix."""
        return _name(self._model.dtype)

    @property
    def device(self) -> str:
        return str(self._model.device)

    @property
    def description(self) -> str:
        """One line for a human."""
        model = self._model
        threads = f", {torch.get_num_threads()} threads" if model.device.type == "cpu" else ""
        outcome = "deterministic" if self.deterministic else "not deterministic"
        return (
            f"{model.config.architecture} {self.dtype} on {self.device}{threads}, "
            f"{self.num_blocks} blocks of {self.block_size}, "
            f"rows padded to {self._product.padding}: {outcome}"
        )

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> list[SequenceResult]:
        """See `Runner`.

        Raises:
            NonFiniteLogits: the model computed NaN for a row that counts; nothing is sampled.
        """
        if batch.copies:
            self._copy_blocks(batch.copies)
        if not batch.sequences:
            return []
        hidden = self._model.forward(self._inputs(batch), self._kv_cache, self._rotary)
        prompt_logprobs = score_prompts(batch, lambda rows: self._logits(hidden, rows))
        drawn_rows: list[int] = []
        sampled: list[SamplingRow] = []
        num_rows = 0
        for sequence in batch.sequences:
            num_rows += len(sequence.token_ids)
            if sequence.sample:
                drawn_rows += range(num_rows - 1 - sequence.num_drafts, num_rows)
                sampled += _sampling_rows(sequence)
        tokens = iter(sample(self._logits(hidden, drawn_rows), sampled) if sampled else ())
        return [
            SequenceResult(
                tuple(islice(tokens, sequence.num_drafts + 1)) if sequence.sample else (), scores
            )
            for sequence, scores in zip(batch.sequences, prompt_logprobs, strict=True)
        ]

    def _copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        pairs = torch.tensor(copies, dtype=torch.int64, device=self._model.device)
        for key_cache, value_cache in self._kv_cache:
            copy_blocks(key_cache, value_cache, pairs)

    def _logits(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Of those rows of the hidden states, over the ids that may be sampled."""
        num_padding = self._product.padded(len(rows)) - len(rows)
        index = torch.tensor([*rows, *[0] * num_padding], device=hidden.device)
        return self._model.logits(hidden[index])[: len(rows), : self._vocab_size]

    def _inputs(self, batch: StepBatch) -> StepInputs:
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for sequence in batch.sequences:
            token_ids += sequence.token_ids
            covered = range(sequence.start, sequence.start + len(sequence.token_ids))
            positions += covered
            slots += self._slots(sequence, covered)
        num_padding = self._product.padded(len(token_ids)) - len(token_ids)

        def int64(values: list[int], filler: int) -> torch.Tensor:
            padded = values + [filler] * num_padding
            return torch.tensor(padded, dtype=torch.int64, device=self._model.device)

        sequences = batch.sequences
        return StepInputs(
            token_ids=int64(token_ids, 0),
            positions=int64(positions, 0),
            slot_mapping=int64(slots, PADDING_SLOT),
            metadata=AttentionMetadata.build(
                query_lens=[len(sequence.token_ids) for sequence in sequences],
                context_lens=[sequence.start + len(sequence.token_ids) for sequence in sequences],
                block_tables=[sequence.block_table for sequence in sequences],
                device=self._model.device,
            ),
        )

    def _slots(self, sequence: ScheduledSequence, positions: Sequence[int]) -> list[int]:
        size = self._block_size
        return [sequence.block_table[p // size] * size + p % size for p in positions]


def _sampling_rows(sequence: ScheduledSequence) -> Iterator[SamplingRow]:
    """How the token after the last known one is drawn, then how those after each draft are: with
    the noise of their own positions, and a history in which the drafts before them are known.
    """
    sampling, history = sequence.sampling, sequence.history
    stop = sequence.start + len(sequence.token_ids)
    drafts = sequence.token_ids[len(sequence.token_ids) - sequence.num_drafts :]
    for count, position in enumerate(range(stop - sequence.num_drafts, stop + 1)):
        noise = uniform(sampling.seed, position)
        yield SamplingRow(sampling, noise, history and _with_drafts(history, drafts[:count]))


def _with_drafts(history: TokenHistory, drafts: Sequence[int]) -> TokenHistory:
    return replace(history, token_ids=[*history.token_ids, *drafts]) if drafts else history


def build_runner(config: RunnerConfig) -> ModelRunner:
    """Load the model and lay out its KV cache. Sets torch's number of threads.

    Raises:
        ModelFileError: the model's files cannot be used.
        EngineError: the device is not there, or its memory does not hold one full context.
    """
    torch.set_num_threads(config.cpu_threads or max(1, available_cores() - SPARED_CORES))
    device = _device(config.device)
    model = load_model(config.model, dtype=_dtype(config.dtype, device), device=device)
    max_model_len = _max_model_len(config, model)
    rows = model.config.vocab_size
    return ModelRunner(
        model,
        num_blocks=_num_blocks(config, model, max_model_len),
        block_size=config.block_size,
        max_model_len=max_model_len,
        vocab_size=min(rows, config.num_token_ids or rows),
        product=_product(config, model, max_model_len),
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    num_devices = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_devices:
        raise EngineError(f"device is {name}, but torch finds {num_devices} CUDA devices")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return dtypes[name]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _max_model_len(config: RunnerConfig, model: Decoder) -> int:
    longest = model.config.max_positions
    if config.max_model_len > longest:
        raise EngineError(
            f"max_model_len is {config.max_model_len}, but {config.model} was made for {longest}"
        )
    return config.max_model_len or longest


def _num_blocks(config: RunnerConfig, model: Decoder, max_model_len: int) -> int:
    num_tokens = config.cache_tokens(max_model_len)
    if num_tokens:
        return num_blocks_for(
            model.config,
            num_tokens=num_tokens,
            block_size=config.block_size,
            dtype=model.dtype,
            free_bytes=free_memory_bytes(model.device),
        )
    return num_cache_blocks(
        model.config,
        block_size=config.block_size,
        dtype=model.dtype,
        cache_bytes=config.cache_bytes() or automatic_cache_bytes(model.device),
        max_model_len=max_model_len,
    )


def _product(config: RunnerConfig, model: Decoder, max_model_len: int) -> InvariantProduct:
    if model.device.type != "cpu":
        return InvariantProduct()  # not measured there
    sizes = {model.config.hidden_size, model.config.query_size, model.config.intermediate_size}
    if {choose("product", "cpu", model.dtype, size) for size in sorted(sizes)} == {"c"}:
        model.pack_matrices()
        return InvariantProduct(is_invariant=True)
    of_layer, head = model.matrices
    probed = [(matrix, config.max_step_rows(max_model_len)) for matrix in of_layer]
    probed.append((head, max(config.max_drawn_rows(), SLICE_ROWS)))
    return find_invariant_product(
        [(matrix, rows) for matrix, rows in probed if isinstance(matrix, torch.Tensor)]
    )
