"""An object of object storage as a path: which object it is, and how a piece of it is read."""

from __future__ import annotations

import io
import re
from typing import Any

from millwheel.errors import InputError
from millwheel.objects import explained, open_client

_BLOCK = 8 << 20  # bytes of a request: what a task holds of an object, and few requests
SUFFIX = re.compile(r"#([0-9a-f]+)-([0-9a-f]+)-(.*)")
"""What names an object behind its URL: its time, its size, its ETag."""


class ObjectPath(str):
    """The URL of an object, with what is needed to read that very object and no other."""

    parameters: str
    tag: str

    def __new__(cls, url: str, parameters: str = "", tag: str = "") -> ObjectPath:
        made = super().__new__(cls, url)
        made.parameters = parameters
        made.tag = tag
        return made

    def __reduce__(self) -> Any:
        return ObjectPath, (str(self), self.parameters, self.tag)

    @property
    def location(self) -> str:
        """The URL with its parameters."""
        return f"{self}?{self.parameters}" if self.parameters else str(self)

    def open_piece(self, start: int, end: int) -> io.RawIOBase:
        """Return the bytes from one position to another as a file."""
        return _Piece(self, start, end)

    @classmethod
    def of(cls, partition: str, parameters: str) -> ObjectPath:
        """Return the object that a partition is named after."""
        url, mark, rest = partition.rpartition("#")
        found = SUFFIX.fullmatch(mark + rest)
        if not url or found is None:
            return cls(partition, parameters)
        return cls(url, parameters, found[3])


class _Piece(io.RawIOBase):
    """A range of an object, block by block; an object that was replaced meanwhile is an error."""

    def __init__(self, path: ObjectPath, start: int, end: int) -> None:
        self._path = path
        self._at = start
        self._end = end
        self._block = b""
        folder, _, self._name = path.rpartition("/")
        self._client = client(folder, path.parameters)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._block and self._at < self._end:
            self._block = self._get(self._at, min(self._at + _BLOCK, self._end))
            self._at += len(self._block)
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def _get(self, start: int, end: int) -> bytes:
        import obstore
        from obstore.exceptions import PreconditionError

        options: Any = {"range": (start, end)}
        if self._path.tag:
            options["if_match"] = self._path.tag
        with explained(self._path.location, InputError):
            try:
                return bytes(obstore.get(self._client, self._name, options=options).bytes())
            except PreconditionError:
                raise InputError(changed(self._path)) from None


def changed(path: str) -> str:
    """Return what is said of an object that has other content than it had."""
    return f"the object {path} changed since it was read: put new content under a new name"


_clients: dict[tuple[str, str], Any] = {}


def client(folder: str, parameters: str) -> Any:
    """Return this process's client for a folder: it keeps its connections."""

    if len(_clients) > 1_000:
        _clients.clear()
    if (folder, parameters) not in _clients:
        url = f"{folder}?{parameters}" if parameters else folder
        _clients[folder, parameters] = open_client(url, error=InputError)
    return _clients[folder, parameters]
