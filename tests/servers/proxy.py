"""A proxy before a server that cuts connections when it is told to: in the middle of a commit, say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Moment = Literal["before", "after"]


@dataclass
class Proxy:
    """Forwards connections of a port to another one."""

    target: int
    port: int = 0
    cuts: int = 0
    """Connections that were cut."""
    _armed: tuple[bytes, Moment] | None = None
    _open: list[socket.socket] = field(default_factory=list)
    _closed: bool = False

    def arm(self, word: bytes, moment: Moment) -> None:
        """Cuts the next connection that sends the word: before the server gets it, or before the client
        gets the answer to it."""
        self._armed = (word, moment)

    def cut_all(self) -> None:
        """Cuts every connection."""
        for one in self._open:
            _end(one)
            self.cuts += 1
        self._open.clear()

    def serve(self, listener: socket.socket) -> None:
        """Takes connections until the listener is closed."""
        while not self._closed:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += (client, server)
            answers = threading.Event()
            threading.Thread(target=self._up, args=(client, server, answers), daemon=True).start()
            threading.Thread(target=self._down, args=(server, client, answers), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, last: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                armed = self._armed
                if armed is not None and armed[0] in data:
                    self._armed = None
                    self.cuts += 1
                    if armed[1] == "before":
                        break
                    last.set()
                server.sendall(data)
        if not last.is_set():
            _end(client)
            _end(server)

    def _down(self, server: socket.socket, client: socket.socket, last: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if last.is_set():
                    break  # the server has done it, and nobody hears of it
                client.sendall(data)
        _end(client)
        _end(server)

    def close(self) -> None:
        """Cuts everything, for good."""
        self._closed = True
        self.cut_all()


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    """A proxy before a port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Proxy(target, listener.getsockname()[1])
        threading.Thread(target=found.serve, args=(listener,), daemon=True).start()
        try:
            yield found
        finally:
            found.close()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
