from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from native_engine.errors import ModelFileError
from native_engine.loader.load import load_model
from native_engine.models.decoder import Decoder
from tests.native_engine.checkpoints import (
    gguf_metadata,
    gguf_tensors,
    model_gguf,
    tiny_llama,
    write_folder,
    write_gguf,
)
from tests.native_engine.reference import transformers_model

CPU = torch.device("cpu")


def load(path: Path) -> Decoder:
    return load_model(path, dtype=torch.float32, device=CPU)


def assert_same_weights(decoder: Decoder, model: LlamaForCausalLM) -> None:
    expected = dict(model.named_parameters())
    loaded = dict(transformers_model(decoder).named_parameters())
    assert set(loaded) == set(expected)
    for name, parameter in expected.items():
        assert torch.equal(loaded[name], parameter), name


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"tie_word_embeddings": True},
        {"head_dim": 32},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
    ],
)
def test_one_model_is_the_same_from_a_folder_shards_and_gguf(
    tmp_path: Path, overrides: dict[str, Any]
) -> None:
    """L-TIED-EMBED."""
    model = tiny_llama(**overrides)
    single = write_folder(model, tmp_path / "single")
    sharded = write_folder(model, tmp_path / "sharded", max_shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    for path in (single, sharded, model_gguf(model, tmp_path / "model.gguf")):
        assert_same_weights(load(path), model)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_weights_are_those_the_gguf_package_decodes(tmp_path: Path, kind: str) -> None:
    model = tiny_llama()
    quantization = GGMLQuantizationType[kind]
    path = model_gguf(model, tmp_path / "model.gguf", matrix_type=quantization)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                blocks = quantize(parameter.numpy(), quantization)
                parameter.copy_(torch.from_numpy(dequantize(blocks, quantization)))
    assert_same_weights(load(path), model)


def test_loads_in_the_dtype_asked_for(tmp_path: Path) -> None:
    path = write_folder(tiny_llama(), tmp_path / "model")
    decoder = load_model(path, dtype=torch.bfloat16, device=CPU)
    assert decoder.dtype == torch.bfloat16
    assert decoder.layers[0].qkv.weight.dtype == torch.bfloat16


def rewrite_folder(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


def test_a_redundant_head_is_ignored_with_a_warning_if_it_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L-TIED-EMBED."""
    model = tiny_llama(tie_word_embeddings=True)
    folder = write_folder(model, tmp_path / "model")
    embedding = "model.embed_tokens.weight"
    rewrite_folder(
        folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding] + 0})
    )
    assert_same_weights(load(folder), model)
    assert not caplog.records
    rewrite_folder(
        folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding] + 1})
    )
    assert_same_weights(load(folder), model)
    assert "lm_head.weight is ignored" in caplog.text


def test_rotary_frequencies_of_old_files_are_harmless(tmp_path: Path) -> None:
    folder = write_folder(tiny_llama(), tmp_path / "model")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite_folder(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    assert load(folder).config.num_layers == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("lm_head.weight"), "tensor lm_head.weight is missing"),
        (
            lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
            "tensor model.layers.1.mlp.up_proj.weight is missing",
        ),
        (
            lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.ones(2)}),
            "tensor model.layers.2.mlp.up_proj.weight is not part of this model",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(63)}),
            r"tensor model.norm.weight has shape \[63\], but the configuration asks for \[64\]",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
            "tensor model.norm.weight is of dtype I8",
        ),
    ],
)
def test_refuses_a_folder_whose_tensors_do_not_fit(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    """L-TIED-EMBED."""
    folder = write_folder(tiny_llama(), tmp_path / "model")
    rewrite_folder(folder, change)
    with pytest.raises(ModelFileError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("blk.1.ffn_up.weight"), "tensor blk.1.ffn_up.weight is missing"),
        (lambda t: t.pop("token_embd.weight"), "tensor token_embd.weight is missing"),
        (
            lambda t: t.update({"blk.0.ffn_exps.weight": np.ones(2, dtype=np.float32)}),
            "tensor blk.0.ffn_exps.weight is not part of this model",
        ),
        (
            lambda t: t.update({"output_norm.weight": np.ones(63, dtype=np.float32)}),
            r"tensor output_norm.weight has shape \[63\]",
        ),
    ],
)
def test_refuses_a_gguf_file_whose_tensors_do_not_fit(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    model = tiny_llama()
    tensors = gguf_tensors(model)
    change(tensors)
    path = write_gguf(tmp_path / "model.gguf", gguf_metadata(model), tensors)
    with pytest.raises(ModelFileError, match=rf"model\.gguf: {message}"):
        load(path)


@pytest.mark.parametrize(
    "key", ["final_logit_softcapping", "attention.scale", "rope.scaling.yarn_attn_factor"]
)
def test_refuses_a_gguf_file_with_a_key_that_nothing_here_reads(tmp_path: Path, key: str) -> None:
    model = tiny_llama()
    tensors, metadata = gguf_tensors(model), gguf_metadata(model)
    noted = {**metadata, "tensor_data_layout": "reference", "rope.scaling.finetuned": 1}
    load(write_gguf(tmp_path / "good.gguf", noted, tensors))
    path = write_gguf(tmp_path / "a.gguf", {**metadata, key: 30.0}, tensors)
    with pytest.raises(ModelFileError, match=rf"a\.gguf: llama\.{key} is set, and what it asks"):
        load(path)


def test_refuses_an_unknown_architecture_naming_the_key(tmp_path: Path) -> None:
    model = tiny_llama()
    path = write_gguf(tmp_path / "a.gguf", gguf_metadata(model), {}, architecture="gpt9")
    with pytest.raises(ModelFileError, match=r"a\.gguf: general\.architecture is \['gpt9'\]"):
        load(path)
    folder = write_folder(model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for names in (["NewForCausalLM"], [], None, "LlamaForCausalLM"):
        (folder / "config.json").write_text(json.dumps({**config, "architectures": names}))
        with pytest.raises(ModelFileError, match=r"config\.json: architectures is"):
            load(folder)


def test_refuses_a_path_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be opened"):
        load(tmp_path / "absent")
    with pytest.raises(ModelFileError, match=r"config\.json: cannot be opened"):
        load(tmp_path)
