"""Policies that the end-to-end tests serve."""

from __future__ import annotations

from tests.e2e.running import MODEL_FILE

NATIVE = f"""\
version: 1
backends:
  smollm2: {{engine: native, model: {MODEL_FILE}}}
models:
  smollm2: {{aliases: [gpt-4o-mini]}}
limits:
  tight: {{requests: 3/min, tokens: 4k/min, concurrent: 1}}
plans:
  demo: {{limits: [], models: [smollm2]}}
  tight: {{limits: [tight], models: [smollm2]}}
routes:
  - {{name: all, use: smollm2}}
defaults:
  model: smollm2
"""

ECHO = """\
version: 1
backends:
  echo: {engine: echo, token_delay_s: 0.02}
  slow: {engine: echo, token_delay_s: 0.5}
models:
  echo: {}
  slow: {}
limits:
  tight: {requests: 3/min, tokens: 4k/min, concurrent: 1}
plans:
  demo: {limits: [], models: "*"}
  tight: {limits: [tight], models: [echo]}
routes:
  - {name: slow, match: {model: slow}, use: slow}
  - {name: all, use: echo}
defaults:
  model: echo
"""
