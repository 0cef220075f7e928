"""The documents are true: files they name exist, and commands they show are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(
    r"`((?:gateway|backends|native_engine|kernels|policies|tests|docs|benchmarks)/[\w./-]*)"
)


@pytest.mark.parametrize(
    "document",
    [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "README.md",
        "docs/admin.md",
        "docs/engines.md",
        "docs/kernels.md",
        "docs/ledger.md",
        "docs/models.md",
        "docs/oidc.md",
        "docs/fastchat.md",
        "docs/priority_batcher.md",
        "docs/tenants.md",
        "docs/usage.md",
    ],
)
def test_every_file_that_a_document_names_exists(document: str) -> None:
    text = ROOT.joinpath(document).read_text()
    missing = [name for name in NAMED.findall(text) if not ROOT.joinpath(name).exists()]
    assert not missing


def test_the_map_fits_on_a_page() -> None:
    assert len(ROOT.joinpath("ARCHITECTURE.md").read_text().splitlines()) <= 150


def test_the_readme_names_the_targets_that_the_makefile_has() -> None:
    makefile = ROOT.joinpath("Makefile").read_text()
    for target in re.findall(r"make ([\w-]+)", ROOT.joinpath("README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_ci_runs_the_readmes_test_command() -> None:
    assert "make test" in ROOT.joinpath(".ci/run").read_text()
    assert "make check" in ROOT.joinpath(".ci/run").read_text()
