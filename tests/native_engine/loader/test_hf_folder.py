from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from native_engine.errors import ModelFileError
from native_engine.loader.hf_folder import HFFolder, read_config


def write_shards(folder: Path, shards: dict[str, dict[str, torch.Tensor]]) -> None:
    for file, tensors in shards.items():
        save_file(tensors, folder / file)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_reads_one_file_or_several(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    single, sharded = tmp_path / "single", tmp_path / "sharded"
    single.mkdir()
    sharded.mkdir()
    save_file(tensors, single / "model.safetensors")
    write_shards(sharded, {f"{name}.safetensors": {name: t} for name, t in tensors.items()})
    for folder in (HFFolder(single), HFFolder(sharded)):
        assert dict(folder.shapes) == {"a": (2, 3), "b": (4,)}
        assert torch.equal(folder.read("a"), tensors["a"])
        assert torch.equal(folder.read("b"), tensors["b"])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_refuses_weights_of_another_dtype_naming_file_and_tensor(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    save_file({"w": torch.zeros(4).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"model\.safetensors: tensor w is of dtype"):
        HFFolder(tmp_path).read("w")


def test_refuses_a_file_cut_short_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(64)}, path)
    whole = path.read_bytes()
    for size in (0, 4, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match=r"model\.safetensors: cannot be read"):
            HFFolder(tmp_path)


def test_refuses_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        HFFolder(tmp_path)


def test_refuses_a_shard_that_is_missing(tmp_path: Path) -> None:
    write_shards(
        tmp_path, {"1.safetensors": {"a": torch.ones(1)}, "2.safetensors": {"b": torch.ones(1)}}
    )
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"2\.safetensors: cannot be read"):
        HFFolder(tmp_path)


def test_refuses_an_index_that_does_not_match_its_files(tmp_path: Path) -> None:
    write_shards(tmp_path, {"1.safetensors": {"a": torch.ones(1)}})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}}))
    with pytest.raises(ModelFileError, match=r"1\.safetensors: tensor b is missing"):
        HFFolder(tmp_path)


def test_refuses_a_tensor_that_two_shards_hold(tmp_path: Path) -> None:
    write_shards(
        tmp_path, {"1.safetensors": {"a": torch.ones(1)}, "2.safetensors": {"b": torch.ones(1)}}
    )
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "2.safetensors")
    with pytest.raises(ModelFileError, match=r"2\.safetensors: tensor a is in 1\.safetensors"):
        HFFolder(tmp_path)


@pytest.mark.parametrize(
    "index",
    ["[]", "{}", "{", '{"weight_map": {}}', '{"weight_map": {"a": "../a.safetensors"}}',
     '{"weight_map": {"a": 3}}'],
)  # fmt: skip
def test_refuses_an_index_that_is_none(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFileError, match=r"index\.json: "):
        HFFolder(tmp_path)


@pytest.mark.parametrize("config", [None, "", "[]", "{", '"text"'])
def test_refuses_a_folder_without_a_config(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelFileError, match=r"config\.json: "):
        read_config(tmp_path)
