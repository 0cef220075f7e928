from __future__ import annotations

from pathlib import Path

import pytest

from backends.text.tokenizer import Tokenizer, load_tokenizer
from tests.backends.text.tiny import tiny_tokenizer

REAL_MODEL = Path(".turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def real_tokenizer() -> Tokenizer:
    """SmolLM2-135M-Instruct's."""
    return load_tokenizer(REAL_MODEL)
