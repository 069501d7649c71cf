"""Both servers, the page and the HTTP injector: no client can hold them up, and each gets an answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.http_server import Limits
from millwheel.store.memory import MemoryStore
from millwheel.watch.server import Server
from tests.spark.waiting import eventually

Serve = Callable[[Limits], int]
GOOD = {
    "injector": b'POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{"t":1}',
    "page": b"GET /page.css HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.fixture(params=["injector", "page"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(kind: str, tmp_path: Path) -> Iterator[Serve]:
    """Starts a server under limits; its port."""
    with ExitStack() as stack:

        def start(limits: Limits) -> int:
            if kind == "page":
                page = Server(MemoryStore(1), limits=limits)
                stack.callback(page.close)
                return page.port
            injector = mw.injectors.Http(
                0,
                timestamp="t",
                log=tmp_path / "log",
                max_connections=limits.connections,
                timeout=limits.seconds,
            )
            injector.begin("a store", "in")
            stack.callback(injector.close)
            return injector.port

        yield start


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def ask(port: int, data: bytes) -> bytes:
    """The first line of the answer, and its body."""
    with closing(connect(port)) as connection:
        connection.sendall(data)
        return connection.makefile("rb").readline()


def test_what_is_right_is_answered(serve: Serve, kind: str) -> None:
    assert b" 200 " in ask(serve(Limits()), GOOD[kind])


def test_connections_beyond_the_limit_are_refused_and_make_room_again(serve: Serve, kind: str) -> None:
    port = serve(Limits(connections=3))
    idle = [connect(port) for _ in range(3)]
    for connection in idle:  # served, and kept open
        connection.sendall(GOOD[kind])
        assert b" 200 " in connection.makefile("rb").readline()
    assert b" 503 " in ask(port, GOOD[kind])
    idle[0].close()
    eventually(lambda: b" 200 " in ask(port, GOOD[kind]))
    for connection in idle:
        connection.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 500) for i in range(50)) + b"\r\n",
    ],
    ids=["request line", "one header", "many headers"],
)
def test_headers_beyond_the_limit_are_refused(serve: Serve, kind: str, head: bytes) -> None:
    assert b" 431 " in ask(serve(Limits()), head)


@pytest.mark.parametrize("begin", [b"", b"POST / HTTP/1.1\r\nHost: localhost\r\n"], ids=["line", "headers"])
def test_a_client_that_sends_byte_by_byte_is_cut_off(serve: Serve, begin: bytes) -> None:
    with closing(connect(serve(Limits(seconds=0.3)))) as connection:
        connection.sendall(begin)
        connection.settimeout(0.02)
        ended = False
        while (
            not ended
        ):  # it never stops sending, and never ends what it sends: the test's own limit is pytest's
            try:
                connection.sendall(b"x")
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True


@pytest.mark.parametrize("digits", [19, 5_000])
def test_a_length_of_many_digits_gets_an_answer(serve: Serve, kind: str, digits: int) -> None:
    verb = b"POST / " if kind == "injector" else b"GET /page.css "
    length = b"9" * digits
    answer = ask(
        serve(Limits()), verb + b"HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n"
    )
    assert (b" 413 " if kind == "injector" else b" 200 ") in answer


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\xff" * 100 + b"\r\n",
    ],
    ids=["empty lines", "TLS", "no path", "a version of tomorrow", "bytes"],
)
def test_what_is_no_http_leaves_the_server_as_it_was(serve: Serve, kind: str, data: bytes) -> None:
    port = serve(Limits(seconds=0.3))
    ask(port, data)
    assert b" 200 " in ask(port, GOOD[kind])


def test_a_body_is_not_taken_for_the_next_request(serve: Serve, kind: str) -> None:
    if kind == "injector":
        pytest.skip("it reads bodies")
    with closing(connect(serve(Limits()))) as connection:
        inner = b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(
            b"GET /page.css HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner
        )
        answer = connection.makefile("rb").read()
    assert answer.count(b"HTTP/1.1 200") == 1
