"""A backend with a controller on a free port, for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backends.static_batch.fastchat.remote import FastChatBackend, open_backend
from tests.backends.static_batch.fastchat.remote_requests import (
    spec,
)


@pytest.fixture
async def backend() -> AsyncIterator[FastChatBackend]:
    backend = await open_backend(spec())
    yield backend
    await backend.aclose()
