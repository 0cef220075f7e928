from __future__ import annotations

from gateway.dialects import sse


def test_an_event_is_one_data_line_with_a_space_and_an_empty_line() -> None:
    assert sse.frame(b'{"a":1}') == b'data: {"a":1}\n\n'


def test_the_end_is_the_line_clients_compare_with() -> None:
    assert sse.DONE.decode().strip() == "data: [DONE]"


def test_keep_alive_is_a_comment_that_ends_like_an_event() -> None:
    """S-KEEPALIVE: clients skip it."""
    assert sse.KEEP_ALIVE.startswith(b":")
    assert sse.KEEP_ALIVE.endswith(b"\n\n")
