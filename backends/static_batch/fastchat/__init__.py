"""FastChat's protocol between controller, workers and API server.

Source: FastChat 0.2.36, whose own processes are the other side in `tests/e2e`.
"""
