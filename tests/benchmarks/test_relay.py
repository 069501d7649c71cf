"""The relay in front of a server hands on what comes, later if it is told to, and counts it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.servers.relay import relay

DELAY = 0.2


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back twice what it gets, on every connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(client,), daemon=True).start()


def _answer(client: socket.socket) -> None:
    with client:
        while data := client.recv(1 << 16):
            client.sendall(data * 2)


def _asked(client: socket.socket, data: bytes) -> int:
    """The bytes of an answer."""
    client.sendall(data)
    found = 0
    while found < 2 * len(data):
        found += len(client.recv(1 << 16))
    return found


def test_it_counts_what_is_sent_and_what_is_received(echo: int) -> None:
    with relay(echo) as found:
        for size in (10, 300_000):
            with socket.create_connection(("127.0.0.1", found.port)) as client:
                assert _asked(client, b"x" * size) == 2 * size
        assert found.counted() == (300_010, 600_020)


def test_every_request_is_late_by_the_delay_and_those_side_by_side_together(echo: int) -> None:
    with relay(echo, DELAY) as found, socket.create_connection(("127.0.0.1", found.port)) as client:
        began = time.monotonic()
        for _ in range(3):
            _asked(client, b"request")
        assert time.monotonic() - began >= 3 * DELAY
        # In pieces: each is late, but no later for those before it.
        others = [socket.create_connection(("127.0.0.1", found.port)) for _ in range(100)]
        began = time.monotonic()
        for other in others:
            other.sendall(b"x")
        for other in others:
            assert other.recv(2)
            other.close()
        assert time.monotonic() - began < 100 * DELAY


def test_a_connection_that_the_client_ends_is_ended_at_the_server_and_a_server_that_is_away_ends_it(
    echo: int,
) -> None:
    with relay(echo) as found, socket.create_connection(("127.0.0.1", found.port)) as client:
        _asked(client, b"x")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    with relay(free) as found, socket.create_connection(("127.0.0.1", found.port)) as client:
        assert client.recv(1) == b""
