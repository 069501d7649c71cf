"""A log of lines on disk, in files that are removed once they are not needed any more.

A position counts bytes since the log began; a file's name is the position of its first byte.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_FILE_SIZE = 64 << 20  # bytes after which a new file is begun


class LogFull(Exception):
    """So much waits in the log that no more is taken."""


class Log:
    """Invariant: what `append` has returned from is durable, and before `durable`.

    Callers of `append` share syncs: each waits for one that began after its lines were written.
    """

    def __init__(self, folder: Path, limit: int, *, file_size: int = _FILE_SIZE) -> None:
        self._folder = folder
        self._limit = limit
        self._file_size = file_size
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        found = _files(folder)
        begin, path = found[-1] if found else (0, folder / f"{0:020d}.jsonl")
        self._file: IO[bytes] = open(path, "ab")  # noqa: SIM115 - closed with the log
        self._begin = begin
        self._mend(path)
        self._written = self.durable = begin + os.fstat(self._file.fileno()).st_size
        self._released = found[0][0] if found else 0

    def _mend(self, path: Path) -> None:
        """Drops a last line that was not written to its end: nobody was told that it was."""
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            position = size
            while position > 0:
                step = min(position, 1 << 16)
                file.seek(position - step)
                last = file.read(step).rfind(b"\n")
                if last >= 0:
                    position += last + 1 - step
                    break
                position -= step
        if position < size:
            self._file.truncate(position)
        os.fsync(self._file.fileno())
        _sync(self._folder)

    def append(self, lines: bytes) -> None:
        """Adds whole lines; returns when they are durable."""
        with self._writing:
            if self._written - self._released + len(lines) > self._limit:
                waiting = self._written - self._released
                raise LogFull(f"{waiting:,} bytes wait to be injected: send again later")
            if self._written - self._begin >= self._file_size:
                self._turn()
            start = self._written
            try:
                self._file.write(lines)
                self._file.flush()
            except OSError:
                self._undo(start)
                raise
            self._written = position = start + len(lines)
        with self._syncing:
            if self.durable >= position:
                return
            with self._writing:
                # A handle of its own: a new file may be begun, and this one closed, meanwhile.
                handle, written = os.dup(self._file.fileno()), self._written
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            self.durable = max(self.durable, written)

    def _undo(self, position: int) -> None:
        """Takes back what a full disk has taken a part of."""
        path = self._folder / f"{self._begin:020d}.jsonl"
        os.truncate(path, position - self._begin)
        self._file = open(path, "ab")  # noqa: SIM115 - closed with the log

    def _turn(self) -> None:
        """Begins a new file; all of the last one is durable then."""
        os.fsync(self._file.fileno())
        self._file.close()
        self._begin = self._written
        self._file = open(self._folder / f"{self._begin:020d}.jsonl", "ab")  # noqa: SIM115 - as above
        _sync(self._folder)

    def release(self, position: int) -> None:
        """What is before a position is not needed any more."""
        with self._writing:
            self._released = max(self._released, position)
            found = _files(self._folder)
        for (_, path), (next_begin, _) in itertools.pairwise(found):
            if next_begin <= position:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """No more is added; closing it again does nothing."""
        with self._syncing, self._writing:
            if not self._file.closed:
                os.fsync(self._file.fileno())
                self._file.close()


def pieces(folder: Path, start: int, end: int) -> Iterator[tuple[str, int, int, int]]:
    """The files that hold a range: path, position of the first byte, and the part of the range in it."""
    found = _files(folder)
    for index, (begin, path) in enumerate(found):
        last = found[index + 1][0] if index + 1 < len(found) else end
        first, stop = max(start, begin), min(end, last)
        if first < stop:
            yield os.fspath(path), begin, first, stop


def _files(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem), path) for path in folder.glob("*.jsonl") if path.stem.isdecimal())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
