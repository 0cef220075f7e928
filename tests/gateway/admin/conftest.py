"""A gateway over echo backends, and its operator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.admin.operator import Operator, operator_of
from tests.gateway.serving import Gateway, echo, gateway_over


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway_over(tmp_path, {"first": echo("first"), "second": echo("second")}) as one:
        yield one


@pytest.fixture
async def operator(gateway: Gateway) -> Operator:
    return await operator_of(gateway)
