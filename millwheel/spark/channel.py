"""A connection between the driver and its resident task, with authentication."""

from __future__ import annotations

import hmac
import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

Address = str | tuple[str, int]
"""The path of a Unix socket, or a host and a port."""

_NONCE = 32  # bytes
_HANDSHAKE = 2.0  # seconds for each side of it, so that a stranger cannot block the driver
_CHECK_EVERY = 0.05  # seconds between checks whether to continue waiting
_KEEPALIVE = 10  # seconds of silence before a TCP keepalive
_HEAD = struct.Struct("!BI")
_LENGTH = struct.Struct("!Q")


class Channel:
    """One end of a connection. A message is a kind, a small number, and some parts."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE)

    def send(self, kind: int, parts: Sequence[bytes] = ()) -> None:
        """Sends a message; raises `OSError` if the other end is closed."""
        lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
        self._socket.sendall(b"".join([_HEAD.pack(kind, len(parts)), lengths, *parts]))

    def receive(self, timeout: float | None = None) -> tuple[int, list[bytes]]:
        """The next message; `TimeoutError`: none began, `ConnectionError`: closed."""
        self._socket.settimeout(timeout)
        first = self._socket.recv(1)
        self._socket.settimeout(None)
        if not first:
            raise ConnectionResetError("the connection has ended")
        kind, count = _HEAD.unpack(first + self._take(_HEAD.size - 1))
        lengths = [_LENGTH.unpack(self._take(_LENGTH.size))[0] for _ in range(count)]
        return kind, [self._take(length) for length in lengths]

    def _take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        taken = bytearray(size)
        rest = memoryview(taken)
        while rest:
            got = self._socket.recv_into(rest)
            if not got:
                raise ConnectionResetError("the connection has ended within a message")
            rest = rest[got:]
        return bytes(taken)

    def authenticate(self, secret: bytes, *, driver: bool) -> None:
        """Checks that the other end has the secret, and proves that this one has it."""
        self._socket.settimeout(_HANDSHAKE)
        mine = os.urandom(_NONCE)
        self._socket.sendall(mine)
        theirs = self._take(_NONCE)
        names = (b"driver", b"task") if driver else (b"task", b"driver")
        self._socket.sendall(_proof(secret, names[0], mine, theirs))
        if not hmac.compare_digest(self._take(_NONCE), _proof(secret, names[1], theirs, mine)):
            raise PermissionError("the other end does not have the secret")
        self._socket.settimeout(None)

    def shut(self) -> None:
        """Ends the connection, also for a thread that waits for a message."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection."""
        self.shut()
        self._socket.close()


def _proof(secret: bytes, name: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.digest(secret, name + own + other, "sha256")


class Listener:
    """Waits for one connection of a peer with the secret."""

    def __init__(self, host: str | None = None, port: int = 0, bind: str | None = None) -> None:
        """On a host's interface; without one, on a Unix socket in a private folder."""
        self.secret = os.urandom(_NONCE)
        self._folder: Path | None = None
        if host is None:
            self._folder = Path(tempfile.mkdtemp(prefix="millwheel-"))
            self._socket = socket.socket(socket.AF_UNIX)
            path = os.fspath(self._folder / "resident")
            self._socket.bind(path)
            self.address: Address = path
        else:
            self._socket = socket.create_server((bind or host, port))
            self.address = (host, self._socket.getsockname()[1])
        self._socket.listen()

    def accept(self, seconds: float, wanted: Callable[[], bool]) -> Channel | None:
        """The connection, after which it stops listening; None: timeout, or not wanted."""
        give_up = time.monotonic() + seconds
        try:
            self._socket.settimeout(_CHECK_EVERY)
            while wanted() and time.monotonic() < give_up:
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    continue
                connection.setblocking(True)
                channel = Channel(connection)
                try:
                    channel.authenticate(self.secret, driver=True)
                    return channel
                except OSError:
                    channel.close()
            return None
        finally:
            self.close()

    def close(self) -> None:
        """Stops listening."""
        self._socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def connect(address: Address, secret: bytes, seconds: float) -> Channel:
    """The task's end of a connection; `OSError` if the driver is not listening."""
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(seconds)
        try:
            connection.connect(address)
        except BaseException:
            connection.close()
            raise
    else:
        connection = socket.create_connection(address, seconds)
    channel = Channel(connection)
    try:
        channel.authenticate(secret, driver=False)
    except BaseException:
        channel.close()
        raise
    return channel
