from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from backends.messages import (
    PROTOCOL_VERSION,
    Abort,
    Add,
    ClientMessage,
    Heartbeat,
    Hello,
    HostMessage,
    Outputs,
    Rejected,
    RejectionKind,
    Welcome,
    WrongVersion,
    decode_from_host,
    encode,
)
from native_engine.types import EngineRequest, EngineStats, FinishReason, SamplingParams
from tests.backends.conftest import CountingProcess, EngineProcesses

TIMEOUT_MS = 10_000


class Peer:
    """The bare other end of an engine process's socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], process: CountingProcess) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.connect(f"ipc://{process.socket_path}")

    def send(self, message: ClientMessage) -> None:
        self.send_bytes(encode(message))

    def send_bytes(self, frame: bytes) -> None:
        self._socket.send(frame)

    def receive(self) -> HostMessage:
        """The next message that is no heartbeat."""
        message = self._next()
        while isinstance(message, Heartbeat):
            message = self._next()
        return message

    def receive_stats(self) -> EngineStats:
        message = self._next()
        assert isinstance(message, Heartbeat)
        return message.stats

    def _next(self) -> HostMessage:
        assert self._socket.poll(TIMEOUT_MS), "the host says nothing"
        return decode_from_host(self._socket.recv())

    def greet(self) -> Welcome:
        self.send(Hello())
        message = self.receive()
        assert isinstance(message, Welcome)
        return message

    def close(self) -> None:
        self._socket.close(linger=0)


class Peers:
    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connected: list[Peer] = []

    def connect(self, process: CountingProcess) -> Peer:
        peer = Peer(self._context, process)
        self._connected.append(peer)
        return peer

    def close(self) -> None:
        for peer in self._connected:
            peer.close()
        self._context.term()


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    peers.close()


def request(
    request_id: str,
    *,
    prompt: tuple[int, ...] = (1,),
    max_tokens: int,
    fork_of: str | None = None,
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens),
        fork_of=fork_of,
    )


def test_welcomes_with_what_the_engine_is(engines: EngineProcesses, peers: Peers) -> None:
    process = engines.start(max_num_seqs=3)

    welcome, other = peers.connect(process).greet(), peers.connect(process).greet()

    assert (welcome.engine.model_id, welcome.engine.max_num_seqs) == ("counting", 3)
    assert welcome.instance == other.instance != ""


def test_sends_each_client_one_message_per_step(engines: EngineProcesses, peers: Peers) -> None:
    peer = peers.connect(engines.start())
    peer.greet()

    peer.send(Add((request("a", max_tokens=2), request("b", prompt=(5,), max_tokens=2))))

    first, second = peer.receive(), peer.receive()
    assert isinstance(first, Outputs)
    assert isinstance(second, Outputs)
    assert [(o.request_id, o.token and o.token.token_id) for o in first.outputs] == [
        ("a", 2),
        ("b", 6),
    ]
    assert [o.finish_reason for o in second.outputs] == [FinishReason.LENGTH] * 2
    assert first.stats.num_running == 2
    assert second.stats.num_running == 0


def test_beats_while_it_has_nothing_to_do(engines: EngineProcesses, peers: Peers) -> None:
    peer = peers.connect(engines.start())
    peer.greet()

    assert [peer.receive_stats() for _ in range(3)] == [EngineStats()] * 3


def test_keeps_the_ids_of_two_clients_apart(engines: EngineProcesses, peers: Peers) -> None:
    process = engines.start(step_s=0.001)
    peer, other = peers.connect(process), peers.connect(process)
    peer.greet()
    other.greet()

    peer.send(Add((request("same", max_tokens=90_000),)))
    assert isinstance(peer.receive(), Outputs)
    other.send(Abort(("same",)))
    other.send(Add((request("same", prompt=(40,), max_tokens=1),)))

    answer = other.receive()
    assert isinstance(answer, Outputs)
    assert answer.stats.num_running == 1, "the other client's is still there"


def test_a_sibling_is_looked_for_among_the_client_s_own(
    engines: EngineProcesses, peers: Peers
) -> None:
    """Added with it or before it; another client's of the same name is nobody's sibling."""
    process = engines.start(step_s=0.001)
    peer, other = peers.connect(process), peers.connect(process)
    peer.greet()
    other.greet()

    def prompt_tokens(peer: Peer, *requests: EngineRequest) -> int:
        """Counted when the last of them has its first token."""
        peer.send(Add(requests))
        while True:
            answer = peer.receive()
            assert isinstance(answer, Outputs)
            if requests[-1].request_id in {output.request_id for output in answer.outputs}:
                return answer.stats.prompt_tokens_total

    first = request("a", prompt=(1, 2, 3), max_tokens=90_000)
    child = replace(first, request_id="b", fork_of="a")
    assert prompt_tokens(peer, first, child) == 3
    assert prompt_tokens(peer, replace(child, request_id="c")) == 3
    assert prompt_tokens(other, replace(child, request_id="d")) == 6


def test_refuses_an_id_its_client_uses_already(engines: EngineProcesses, peers: Peers) -> None:
    peer = peers.connect(engines.start())
    peer.greet()

    peer.send(Add((request("new", max_tokens=5), request("new", max_tokens=5))))

    answer = peer.receive()
    assert isinstance(answer, Rejected)
    assert answer.kind is RejectionKind.DUPLICATE
    assert answer.request_ids == ("new", "new")
    assert peer.receive_stats() == EngineStats()


def test_aborts_the_requests_of_a_client_that_vanished(
    engines: EngineProcesses, peers: Peers
) -> None:
    """Running ones and, with nothing to send them, waiting ones."""
    process = engines.start(max_num_seqs=1, step_s=0.001)
    observer, running, waiting = (peers.connect(process) for _ in range(3))
    for peer in (observer, running, waiting):
        peer.greet()
    running.send(Add((request("a", max_tokens=90_000),)))
    assert isinstance(running.receive(), Outputs)
    waiting.send(Add((request("b", prompt=(1,) * 50, max_tokens=90_000),)))
    while not observer.receive_stats().num_waiting:
        pass

    waiting.close()
    while observer.receive_stats().num_waiting:
        pass
    running.close()
    while observer.receive_stats().num_running:
        pass

    assert observer.receive_stats().prompt_tokens_total == 1, "the waiting one never ran"


def test_ignores_a_request_that_comes_before_a_hello(
    engines: EngineProcesses, peers: Peers
) -> None:
    peer = peers.connect(engines.start())

    peer.send(Add((request("stale", max_tokens=5),)))

    assert peer.greet().stats == EngineStats()
    assert peer.receive_stats() == EngineStats()


def test_tells_a_client_of_another_version_to_go(engines: EngineProcesses, peers: Peers) -> None:
    peer = peers.connect(engines.start())

    peer.send(Hello(PROTOCOL_VERSION + 1))

    assert peer.receive() == WrongVersion(PROTOCOL_VERSION)


class _Exploit:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self._path,))


def test_outlives_bytes_that_are_no_message(
    engines: EngineProcesses, peers: Peers, tmp_path: Path
) -> None:
    """I-PICKLE-WORKER."""
    process = engines.start()
    peer = peers.connect(process)
    victim = tmp_path / "created"
    peer.greet()

    for frame in (b"", os.urandom(100), pickle.dumps(_Exploit(victim)), encode(Hello()) + b"x"):
        peer.send_bytes(frame)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(process.socket_path))
        raw.sendall(pickle.dumps(_Exploit(victim)))

    assert isinstance(peer.greet(), Welcome)
    assert not victim.exists()


def test_exits_with_0_when_told_to_stop(engines: EngineProcesses, peers: Peers) -> None:
    process = engines.start(step_s=0.001)
    peer = peers.connect(process)
    peer.greet()
    peer.send(Add((request("a", max_tokens=90_000),)))
    assert isinstance(peer.receive(), Outputs)

    assert process.terminate() == 0


def test_refuses_a_socket_that_another_process_serves(
    engines: EngineProcesses, peers: Peers
) -> None:
    """P-PORT: before the model is loaded, and without harm to the other."""
    process = engines.start()
    peers.connect(process).greet()

    second = engines.start_on(process.socket_path)

    assert second.wait() == os.EX_CONFIG
    assert isinstance(peers.connect(process).greet(), Welcome)


def test_takes_over_the_socket_of_a_process_that_was_killed(
    engines: EngineProcesses, peers: Peers
) -> None:
    process = engines.start()
    first = peers.connect(process).greet()

    process.kill()
    process.restart()

    assert peers.connect(process).greet().instance != first.instance


def test_refuses_a_directory_that_is_open_to_others(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)

    assert engines.start_on(shared / "engine.sock").wait() == os.EX_CONFIG


def test_refuses_a_path_longer_than_a_socket_has(engines: EngineProcesses, tmp_path: Path) -> None:
    assert engines.start_on(tmp_path / ("x" * 120)).wait() == os.EX_CONFIG


def test_refuses_an_engine_it_does_not_know(engines: EngineProcesses, tmp_path: Path) -> None:
    process = engines.start_on(tmp_path / "engine.sock", engine="unknown")

    assert process.wait() == os.EX_CONFIG
