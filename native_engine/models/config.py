"""What a decoder needs to know of its model, whichever kind of file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The rotary embedding of a layer."""

    theta: float  # pair i of a head turns by theta ** (-2i / head_dim) a position
    factors: tuple[float, ...] = ()  # of those frequencies, i is divided by factor i; () for none
    magnitude: float = 1.0  # turned queries and keys are multiplied by it


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of one decoder. Sizes are positive, `head_dim` is even, and the query
    heads are a multiple of the key heads: whoever reads a file checks that (`keys.py`).
    """

    architecture: str
    vocab_size: int  # rows of the embedding; the tokenizer may know fewer
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int  # the longest context the model was made for
    rms_norm_eps: float
    rope: Rope
    rope_interleaved: bool = False  # the file's Q and K rows come in pairs (2i, 2i + 1)
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # each head's query and key are normed before they are turned
    branch_norms: bool = False  # what attention and MLP give is normed before it is added
    norm_offset: float = 0.0  # to be added to the file's norm weights
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    attention_scale: float = 0.0  # of the scores; 0: head_dim ** -0.5
    windows: tuple[int, ...] = ()  # per layer, how many tokens one sees; 0: all; () for no windows
    window_rope: Rope | None = None  # of the layers with a window, if it differs

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def window(self, layer: int) -> int:
        """How many tokens one sees in this layer, itself included; 0: all."""
        return self.windows[layer] if self.windows else 0

    def layer_rope(self, layer: int) -> Rope:
        """The rotary embedding of this layer."""
        return self.window_rope if self.window_rope and self.window(layer) else self.rope
