"""A log of lines on disk, in files that are removed when no longer needed.

A position is in bytes since the log began; a file's name is the position of its first byte.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from millwheel.disk import sync_folder, write_all

_FILE_SIZE = 64 << 20  # bytes after which a new file is begun


class LogFull(Exception):
    """The log has too many bytes that are not injected yet."""


class Log:
    """Invariant: what `append` has returned from is durable, and before `durable`.

    Callers of `append` share syncs: each waits for one that began after its lines were written. The remains
    of a failed write or sync are truncated before anything else is written. Nothing is buffered in the
    process, so nothing can be written after it ends.
    """

    def __init__(self, folder: Path, limit: int, *, file_size: int = _FILE_SIZE) -> None:
        self._folder = folder
        self._limit = limit
        self._file_size = file_size
        self._writing = threading.RLock()
        self._syncing = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = _files(folder)
        for _, path in found:
            os.chmod(path, 0o600)
        self._begin = found[-1][0] if found else 0
        self._file = self._open()
        self._drop_half_line(self._path())
        self._written = self.durable = self._begin + os.fstat(self._file.fileno()).st_size
        self._released = found[0][0] if found else 0
        self._failures = 0
        self._dirty = False
        """Whether remains of a failed write may follow `_written`."""

    def _open(self) -> FileIO:
        def private(name: str, flags: int) -> int:
            return os.open(name, flags, 0o600)

        return FileIO(os.fspath(self._path()), "ab", opener=private)

    def _path(self) -> Path:
        return self._folder / f"{self._begin:020d}.jsonl"

    def _drop_half_line(self, path: Path) -> None:
        """Drops an incomplete last line: its append was never acknowledged."""
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
        sync_folder(self._folder)

    def append(self, lines: bytes) -> None:
        """Adds whole lines; returns when they are durable. After an `OSError` none is."""
        with self._writing:
            if self._written - self._released + len(lines) > self._limit:
                waiting = self._written - self._released
                raise LogFull(f"{waiting:,} bytes are not injected yet: send again later")
            self._clean()
            self._dirty = True
            try:
                write_all(self._file, lines)
            except OSError:
                with contextlib.suppress(OSError):  # otherwise the next append retries it
                    self._clean()
                raise
            self._dirty = False
            self._written = position = self._written + len(lines)
            failures = self._failures
        self._sync_through(position, failures)

    def _sync_through(self, position: int, failures: int) -> None:
        with self._syncing:
            if failures != self._failures:
                raise OSError(errno.EIO, "a sync of the disk failed")
            if self.durable < position:
                self._sync()
            with self._writing:
                if self._written - self._begin < self._file_size:
                    return
                with contextlib.suppress(OSError):  # then the file grows, and the next append retries
                    self._turn()

    def _sync(self) -> None:
        """Makes all that is written durable, or reverts it; with `_syncing` held.

        After a sync that failed the next one may succeed and yet not have written everything. All callers
        whose lines are reverted wait for a sync, and get an error.
        """
        written = self._written
        try:
            os.fsync(self._file.fileno())
        except OSError:
            with self._writing:
                self._failures += 1
                self._written, self._dirty = self.durable, True
                with contextlib.suppress(OSError):
                    self._clean()
            raise
        self.durable = written

    def _clean(self) -> None:
        """Truncates the remains of a failure; with `_writing` held."""
        if self._dirty:
            os.ftruncate(self._file.fileno(), self._written - self._begin)
            self._dirty = False

    def _turn(self) -> None:
        """Begins a new file, once the last one is durable; with both locks held."""
        if self.durable < self._written:
            self._sync()
        last = self._file, self._begin
        self._begin = self._written
        try:
            self._file = self._open()
            sync_folder(self._folder)
        except OSError:
            self._path().unlink(missing_ok=True)
            self._file, self._begin = last
            raise
        last[0].close()

    def release(self, position: int) -> None:
        """Allows to remove what is before a position."""
        with self._writing:
            self._released = max(self._released, position)
            found = _files(self._folder)
        for (_, path), (next_begin, _) in itertools.pairwise(found):
            if next_begin <= position:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the log; closing it again does nothing."""
        with self._syncing, self._writing:
            if not self._file.closed:
                os.fsync(self._file.fileno())
                self._file.close()


def pieces(folder: Path, start: int, end: int) -> Iterator[tuple[str, int, int, int]]:
    """The files of a range: path, position of its first byte, start and end."""
    found = _files(folder)
    for index, (begin, path) in enumerate(found):
        last = found[index + 1][0] if index + 1 < len(found) else end
        first, stop = max(start, begin), min(end, last)
        if first < stop:
            yield os.fspath(path), begin, first, stop


def _files(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.stem), path) for path in folder.glob("*.jsonl") if path.stem.isdecimal())
