"""How far our decoder's logits are from transformers', for every architecture, rotary scaling and
kind of file, as the table in docs/models.md.

    python -m benchmarks.model_parity
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from tests.native_engine.parity import (
    CASES,
    GREEDY_TOKENS,
    differences,
    files,
    make_model,
    num_equal_greedy_tokens,
)


def row(name: str, folder: Path) -> str:
    """One line of the table."""
    model = make_model(CASES[name])
    paths = files(name, model, folder)
    difference = differences(model, paths)
    equal = min(num_equal_greedy_tokens(model, path) for path in paths.values())
    gguf = "-" if difference.gguf is None else f"{difference.gguf:.1e}"
    return (
        f"| {name} | {difference.folder:.1e} | {gguf} | {difference.same_angles:.1e} "
        f"| {difference.yardstick:.1e} | {equal} of {GREEDY_TOKENS} |"
    )


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    disable_progress_bar()
    print("| model | folder | GGUF | same angles | SDPA against eager | greedy tokens equal |")
    print("|---|---|---|---|---|---|")
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
