"""One real server with the real model for the whole session, and one with echoes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.policies import ECHO, NATIVE
from tests.e2e.running import Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """SmolLM2-135M behind the native engine."""
    with serving(NATIVE) as running:
        yield running


@pytest.fixture(scope="session")
def echo_server() -> Iterator[Server]:
    """Echoes: for what does not depend on a model."""
    with serving(ECHO) as running:
        yield running
