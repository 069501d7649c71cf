"""The identity of a file across renames: log files are rotated by renaming them."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from millwheel.injectors.packed import DAMAGES, CutShort, unpacked

_LONGEST = 1 << 10  # bytes of a fingerprint: a line of a log, or most of it
_STEP = 1 << 20
_SUFFIX = re.compile(r"#([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]{16})")


class Identity(NamedTuple):
    """A file: its first path, device and inode, and a fingerprint of its start.

    A renamed file keeps inode and fingerprint. One that was restored from a copy, or whose disk has another
    number since a restart, keeps path and fingerprint. An inode that was reused by another file
    has another fingerprint.

    >>> Identity.parse("/logs/a.jsonl#2-fe01-9-00000000000000ff")
    Identity(path='/logs/a.jsonl', inode=2, device=65025, length=9, digest='00000000000000ff')
    """

    path: str
    inode: int
    device: int
    length: int
    digest: str

    @property
    def name(self) -> str:
        """The name of its partition; `parse` is its inverse."""
        return f"{self.path}#{self.inode:x}-{self.device:x}-{self.length:x}-{self.digest}"

    @property
    def place(self) -> tuple[int, int]:
        """Its device and inode."""
        return self.inode, self.device

    @classmethod
    def parse(cls, name: str) -> Identity:
        """The identity in a partition's name; a bare path has nothing but the path."""
        path, mark, rest = name.rpartition("#")
        found = _SUFFIX.fullmatch(mark + rest)
        if not path or found is None:
            return cls(name, 0, 0, 0, _digest(b""))
        inode, device, length, digest = found.groups()
        return cls(path, int(inode, 16), int(device, 16), int(length, 16), digest)

    def begins(self, path: str, stat: os.stat_result | None = None) -> bool:
        """Whether a file begins with the same bytes as this one.

        ``stat`` is its status, if it was read: then `Moved` is raised for another file.
        """
        with open(path, "rb", buffering=0) if stat is None else open_same(path, stat) as file:
            return _digest(file.read(self.length)) == self.digest

    def begins_packed(self, path: str) -> bool:
        """Whether a packed file, unpacked, begins so: a log packed after its rotation."""
        data = b""
        try:
            with open(path, "rb") as plain, unpacked(path, plain) as file:
                while len(data) < self.length and (more := file.read(self.length - len(data))):
                    data += more
        except (OSError, EOFError, zlib.error):
            return False
        return _digest(data) == self.digest

    def find(self, others: Iterable[str]) -> str | None:
        """The current path: its own, one of ``others`` after a rename, or of a copy."""
        for path in itertools.chain([self.path], others):  # the others are listed only if needed
            try:
                stat = os.stat(path)
                if (stat.st_ino, stat.st_dev) == self.place and self.begins(path, stat):
                    return path
            except OSError:
                continue
        try:
            return self.path if self.begins(self.path) else None
        except OSError:
            return None


class Moved(FileNotFoundError):
    """Another file is at a path than when its status was read.

    Logs are being rotated.
    """


def open_same(path: str, stat: os.stat_result) -> io.FileIO:
    """Opens the file that had a status; raises `Moved` for another one."""
    file = io.FileIO(path)
    now = os.fstat(file.fileno())
    if (now.st_ino, now.st_dev) != (stat.st_ino, stat.st_dev):
        file.close()
        raise Moved(path)
    return file


def identify(path: str, stat: os.stat_result, end: int, lines: int | None) -> Identity:
    """The identity of a file of ``end`` bytes or more, by its first ``lines``.

    The first line of a log is enough, and the rest may be fixed as long as it is not read. None: it has no
    lines.
    """
    with open_same(path, stat) as file:
        data = file.read(min(end, _LONGEST))
    if lines is not None:
        data = b"".join(data.splitlines(keepends=True)[:lines])
    return Identity(path, stat.st_ino, stat.st_dev, len(data), _digest(data))


def packs(path: str, other: str) -> bool:
    """Whether a packed file, finished or not, begins as another one.

    The first kilobyte is compared, or as much of it as there is.
    """
    data, whole = b"", False
    with open(path, "rb") as plain, unpacked(path, plain) as file:
        try:
            while len(data) < _LONGEST and (more := file.read1(_LONGEST - len(data))):  # type: ignore[attr-defined]
                data += more
            whole = True
        except (EOFError, CutShort):
            pass
        except DAMAGES:
            return False
    with open(other, "rb", buffering=0) as original:
        return original.read(len(data)) == data and (bool(data) or not whole)


def unpacked_size(path: str) -> int:
    """The unpacked size of a gzip file; of a damaged one, up to the damage."""
    size = 0
    with open(path, "rb") as plain, unpacked(path, plain) as file, contextlib.suppress(*DAMAGES):
        while data := file.read1(_STEP):  # type: ignore[attr-defined]  # as all of these have
            size += len(data)
    return size


def _digest(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)
