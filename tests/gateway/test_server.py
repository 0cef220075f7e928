from __future__ import annotations

import httpx

from gateway.config import Settings
from gateway.server import make_server


def test_an_idle_connection_outlives_the_patience_of_clients() -> None:
    """G-LOAD-DROP: closed by the server first, it would be reset under the next request."""
    patience_s = httpx.Limits().keepalive_expiry
    assert patience_s is not None
    assert make_server(Settings()).config.timeout_keep_alive > 10 * patience_s
