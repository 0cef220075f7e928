"""`python -m gateway.cli` is `turnout`."""

from __future__ import annotations

from gateway.cli.main import main

main()
