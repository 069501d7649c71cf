"""Which file a file is, whatever its name is now: log files are rotated by renaming them."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

_LONGEST = 1 << 10  # bytes that a fingerprint covers: a line of a log, or a good part of it
_STEP = 1 << 20
_SUFFIX = re.compile(r"#([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]{16})")


class Identity(NamedTuple):
    """A file: where it was first seen, its device and inode, and a fingerprint of its first bytes.

    A renamed file keeps inode and fingerprint. One that was copied back, or whose disk has another number
    since the machine was started, keeps path and fingerprint. An inode that was given to another file
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
        """As the name of a partition; `parse` is its inverse."""
        return f"{self.path}#{self.inode:x}-{self.device:x}-{self.length:x}-{self.digest}"

    @property
    def place(self) -> tuple[int, int]:
        """Where it is on which disk."""
        return self.inode, self.device

    @classmethod
    def parse(cls, name: str) -> Identity:
        """The identity that a partition's name carries; of a bare path, the path is all that is known."""
        path, mark, rest = name.rpartition("#")
        found = _SUFFIX.fullmatch(mark + rest)
        if not path or found is None:
            return cls(name, 0, 0, 0, _digest(b""))
        inode, device, length, digest = found.groups()
        return cls(path, int(inode, 16), int(device, 16), int(length, 16), digest)

    def begins(self, path: str) -> bool:
        """Whether a file begins with the bytes that this one began with."""
        with open(path, "rb", buffering=0) as file:
            return _digest(file.read(self.length)) == self.digest

    def begins_packed(self, path: str) -> bool:
        """Whether a gzip file, unpacked, begins so: a log that was packed after it was rotated."""
        try:
            with gzip.open(path, "rb") as file:
                return _digest(file.read(self.length)) == self.digest
        except (OSError, EOFError, zlib.error):
            return False

    def find(self, others: Iterable[str]) -> str | None:
        """Where the file is now: at its path, or renamed to one of ``others``, or copied to its path."""
        for path in itertools.chain([self.path], others):  # the others are asked for only if need be
            try:
                stat = os.stat(path)
                if (stat.st_ino, stat.st_dev) == self.place and self.begins(path):
                    return path
            except OSError:
                continue
        try:
            return self.path if self.begins(self.path) else None
        except OSError:
            return None


def identify(path: str, stat: os.stat_result, end: int, lines: int | None) -> Identity:
    """The identity of a file that has at least ``end`` bytes, by its first ``lines`` (None: it has none).

    Of a log the first line is enough, and what comes behind it may be fixed as long as it is not read.
    """
    with open(path, "rb", buffering=0) as file:
        data = file.read(min(end, _LONGEST))
    if lines is not None:
        data = b"".join(data.splitlines(keepends=True)[:lines])
    return Identity(path, stat.st_ino, stat.st_dev, len(data), _digest(data))


def unpacked_size(path: str) -> int:
    """How many bytes a gzip file unpacks to; of a damaged one, up to where it is damaged."""
    size = 0
    with gzip.open(path, "rb") as file, contextlib.suppress(EOFError, zlib.error, gzip.BadGzipFile):
        while data := file.read1(_STEP):
            size += len(data)
    return size


def _digest(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)
