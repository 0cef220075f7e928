"""What holds for every test: how Triton, OpenMP and Hypothesis run, and the servers tests share.

Here, as the first to be loaded of all tests. Without a GPU the Triton kernels run under Triton's
interpreter, which reads this at import; transformers imports Triton as well, wherever it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Other tests run at the same time: a thread that waits for another's must leave the core to them.
# OpenMP reads this when it is loaded, with torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from hypothesis import HealthCheck, settings

from tests.valkey import ValkeyServer, serving_valkey

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # a test about several threads says so

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """The server that tests of the redis store share; each has a prefix of its own in it."""
    with serving_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server
