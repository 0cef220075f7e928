"""Without a GPU the Triton kernels run under Triton's interpreter, which reads this at import.

Here, as the first to be loaded of all tests: transformers imports Triton as well, wherever it is
used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from tests.valkey import ValkeyServer, serving_valkey

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """The server that tests of the redis store share; each has a prefix of its own in it."""
    with serving_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server
