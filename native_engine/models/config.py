"""What a decoder needs to know of its model, whichever kind of file it came from."""

from __future__ import annotations

from dataclasses import dataclass


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
    rope_theta: float
    rope_factors: tuple[float, ...] = ()  # inverse frequency i is divided by factor i; () for none
    rope_interleaved: bool = False  # the file's Q and K rows come in pairs (2i, 2i + 1)
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
