"""The entry point of the command."""

from __future__ import annotations

import os
import sys

import pytest

from gateway.cli.main import main


def test_a_setting_that_cannot_be_used_ends_the_command_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TURNOUT_PORT", "http")
    monkeypatch.setattr(sys, "argv", ["turnout", "doctor"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == os.EX_CONFIG
    assert capsys.readouterr().err == (
        "turnout: TURNOUT_PORT='http': must be a whole number, zero or more\n"
    )
