"""A relay before a server that delays every request and counts bytes, in a process of its own: `relay()`.

A request is handed on whole, so many milliseconds later; answers come back at once. So a server on loopback
answers like one that is a network away.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.servers.processes import Unavailable

_ROOT = Path(__file__).resolve().parents[2]
_CHUNK = 1 << 18  # bytes


@dataclass(frozen=True)
class Relay:
    """A running relay to a port of loopback."""

    port: int
    process: subprocess.Popen[str]

    def counted(self) -> tuple[int, int]:
        """The bytes that clients have sent until now, and those that they have received."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        sent, received = self.process.stdout.readline().split()
        return int(sent), int(received)


@contextmanager
def relay(target: int, delay: float = 0.0) -> Iterator[Relay]:
    """A relay to ``target`` that hands requests on after ``delay`` seconds; it ends with this process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.relay", str(target), str(delay)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline()
        if not port:
            raise Unavailable(f"the relay ended with {process.wait()} when it was started")
        yield Relay(int(port), process)
    finally:
        process.stdin.close()  # at which it ends
        process.wait()
        process.stdout.close()


class _Counting:
    """The process: connections, and the bytes of each direction."""

    def __init__(self, target: int, delay: float) -> None:
        self._target = target
        self._delay = delay
        self._sent = self._received = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Prints the port, then the counts for each line of the input, until that ends."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=_CHUNK)
        print(server.sockets[0].getsockname()[1], flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(self._sent, self._received, flush=True)
        server.close()
        for connection in self._connections:
            connection.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError):
                answers, requests = await asyncio.open_connection("127.0.0.1", self._target, limit=_CHUNK)
                await asyncio.gather(self._up(reader, requests), self._down(answers, writer))
        finally:
            self._connections.discard(task)
            writer.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hands on what comes, each piece when its time has come: a large request is late only once."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.create_task(self._send(late, writer))
        loop = asyncio.get_running_loop()
        data = b"first"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            self._sent += len(data)
            late.put_nowait((loop.time() + self._delay, data))
        await sending

    async def _send(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while True:
                due, data = await late.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                self._received += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()


if __name__ == "__main__":
    asyncio.run(_Counting(int(sys.argv[1]), float(sys.argv[2])).serve())
