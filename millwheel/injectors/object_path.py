"""An object of object storage as a path: its identity, and reading pieces of it."""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any

from millwheel.errors import InputError
from millwheel.objects import explained, open_client

_BLOCK = 8 << 20  # bytes of a request: a compromise of memory and number of requests
_AHEAD = 1  # blocks that are requested before the reader wants them
_SEEK = 1 << 20  # the least bytes of a request where a reader seeks
SUFFIX = re.compile(r"#([0-9a-f]+)-([0-9a-f]+)-(.*)")
"""The identity of an object after its URL: its time, its size, its ETag."""


class ObjectPath(str):
    """The URL of an object, with what is needed to read this version of it."""

    parameters: str
    tag: str
    size: int
    """The bytes of the object; 0: not known."""

    def __new__(cls, url: str, parameters: str = "", tag: str = "", size: int = 0) -> ObjectPath:
        made = super().__new__(cls, url)
        made.parameters = parameters
        made.tag = tag
        made.size = size
        return made

    def __reduce__(self) -> Any:
        return ObjectPath, (str(self), self.parameters, self.tag, self.size)

    @property
    def location(self) -> str:
        """The URL with its parameters."""
        return f"{self}?{self.parameters}" if self.parameters else str(self)

    def open_piece(self, start: int, end: int, first: int | None = None) -> io.RawIOBase:
        """Return the bytes from one position to another as a file.

        With ``first``, no more than these are requested until more are read.
        """
        return _Piece(self, start, end, first)

    def open_seekable(self) -> io.BufferedReader:
        """Return the object as a file in which one may seek, for readers of tables."""
        return io.BufferedReader(_Seekable(self), _SEEK)

    def get(self, start: int, end: int) -> memoryview:
        """Return a range in one request; a replaced object is an `InputError`."""
        import obstore
        from obstore.exceptions import PreconditionError

        folder, _, name = self.rpartition("/")
        options: Any = {"range": (start, end)}
        if self.tag:
            options["if_match"] = self.tag
        with explained(self.location, InputError):
            try:
                answer = obstore.get(client(folder, self.parameters), name, options=options)
                block = memoryview(answer.bytes())
            except PreconditionError:
                raise InputError(changed(self)) from None
        if len(block) != end - start:
            raise InputError(changed(self))
        return block

    @classmethod
    def of(cls, partition: str, parameters: str) -> ObjectPath:
        """Return the object of a partition's name."""
        url, mark, rest = partition.rpartition("#")
        found = SUFFIX.fullmatch(mark + rest)
        if not url or found is None:
            return cls(partition, parameters)
        return cls(url, parameters, found[3], int(found[2], 16))


class _Piece(io.RawIOBase):
    """Reads a range of an object, block by block, with read-ahead.

    A replaced object is an error.

    Without reading ahead a task waits for the network while it could parse: `python -m benchmarks s3_input`.
    """

    def __init__(self, path: ObjectPath, start: int, end: int, first: int | None) -> None:
        self._path = path
        self._ranges = _ranges(start, end, first or _BLOCK)
        self._ahead = 0 if first else _AHEAD
        self._coming: deque[Future[memoryview]] = deque()
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._block:
            self._block = self._next()
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def _next(self) -> memoryview:
        """The next block; empty at the end."""
        for start, end in islice(self._ranges, 1 + self._ahead - len(self._coming)):
            self._coming.append(_threads().submit(self._path.get, start, end))
        self._ahead = _AHEAD
        return self._coming.popleft().result() if self._coming else memoryview(b"")

    def close(self) -> None:
        while self._coming:
            self._coming.pop().cancel()
        super().close()


class _Seekable(io.RawIOBase):
    """An object; each read is a request. A replaced object is an error."""

    def __init__(self, path: ObjectPath) -> None:
        self._path = path
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._path.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._path.size)
        if end <= self._at:
            return 0
        block = self._path.get(self._at, end)
        buffer[: len(block)] = block
        self._at = end
        return len(block)


def _ranges(start: int, end: int, first: int) -> Iterator[tuple[int, int]]:
    """Cuts a range into a first block and others of `_BLOCK` bytes.

    >>> list(_ranges(5, 30, 10)), list(_ranges(5, 5, 10))
    ([(5, 15), (15, 30)], [])
    """
    while start < end:
        yield start, min(start + first, end)
        start, first = start + first, _BLOCK


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads of this process that read ahead."""
    return ThreadPoolExecutor(1 + _AHEAD, "millwheel-objects")


def changed(path: str) -> str:
    """Return the message for an object with changed content."""
    return f"the object {path} changed since it was read: put new content under a new name"


_clients: dict[tuple[str, str], Any] = {}


def client(folder: str, parameters: str) -> Any:
    """Return this process's client for a folder, which keeps its connections."""

    if len(_clients) > 1_000:
        _clients.clear()
    if (folder, parameters) not in _clients:
        url = f"{folder}?{parameters}" if parameters else folder
        _clients[folder, parameters] = open_client(url, error=InputError)
    return _clients[folder, parameters]
