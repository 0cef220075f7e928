"""What a process loads: measured on real interpreters, since a contract only reads source text."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "transformers")


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in memory after a statement, in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=True, timeout=60
    )
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "module", ["gateway.app", "gateway.server", "gateway.fastchat_worker", "backends.native"]
)
def test_the_gateway_loads_no_torch(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(HEAVY)


def test_the_command_loads_neither_a_web_server_nor_a_database() -> None:
    """`turnout --help` is instant only as long as its modules are light."""
    assert loaded_by("import gateway.cli.main").isdisjoint(
        (*HEAVY, "uvicorn", "starlette", "sqlalchemy", "pydantic", "opentelemetry", "tokenizers")
    )


def test_the_scheduler_loads_no_torch() -> None:
    assert loaded_by("import native_engine.engine").isdisjoint((*HEAVY, "numpy"))
