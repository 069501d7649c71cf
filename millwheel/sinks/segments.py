"""Files that grow by the staged batches of committed epochs, each batch once.

Invariant: the files are the batches of all committed epochs, in order, up to a point. The saved state
has the epoch and byte up to which that is durable; after it, the last file has the beginning, or all, of
what is still staged. So a driver that was killed leaves nothing to undo: the next one appends the rest. And
a driver that hung, was taken over, and resumes in the middle writes the same bytes to the same place.
"""

from __future__ import annotations

import errno
import os
import re
from io import FileIO
from pathlib import Path

from millwheel.disk import sync_folder, write_all
from millwheel.sinks.staging import Later, Staging

_SYNC_AFTER = 1.0  # seconds that batches stay staged: avoids a second sync in each epoch
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAME = re.compile(r"part-(\d{10})\.jsonl")


class Segments:
    """The files of one folder, in the driver."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._staging = Staging(folder, f"JsonLines({os.fspath(folder)!r})")
        self._later = Later(_SYNC_AFTER, self._sync_later)
        self._origin = ""
        self._file_size = 0
        self._number = 0
        self._length = 0
        self._through = 0
        self._file: FileIO | None = None
        self.dirty = False

    def begin(self, origin: str, epoch: int, file_size: int) -> None:
        """Takes over from the last driver, and appends what it left staged."""
        with self._later.lock, self._staging.writing():
            self._close_file()
            state = self._staging.take()
            self._origin, self._file_size, self.dirty = origin, file_size, True
            if state.get("origin") == origin:
                self._number, self._length = state["number"], state["length"]
                self._through = state["through"]
                self._complete(epoch)
            else:
                self._staging.drop()
                self._number, self._length, self._through = self._last() + 1, 0, epoch
            self.sync()

    def _last(self) -> int:
        found = [_NAME.fullmatch(name) for name in os.listdir(self._folder)]
        return max((int(match[1]) for match in found if match), default=0)

    def _complete(self, epoch: int) -> None:
        """Completes the last file, without changing its valid part."""
        data = self._staged(epoch)
        if data:
            file = self._open()
            file.seek(self._length)
            there = file.read()
            if not data.startswith(there):  # after a power failure the end of the file is lost
                file.truncate(self._length)
                there = b""
            self._length += len(there)
            self.append(data[len(there) :])
        self._through = epoch

    def append(self, data: bytes) -> None:
        """Appends bytes to the last file."""
        file = self._open()
        file.seek(self._length)  # not at the end: another driver may have appended
        write_all(file, data)
        self._length += len(data)

    def _copy(self, path: Path, position: int) -> int:
        """Copies a staged file to a position within the kernel; returns its end.

        A copy through user memory takes 0.2 microseconds a record more, for which all tasks wait.
        """
        file = self._open()
        with open(path, "rb", buffering=0) as source:
            left = os.fstat(source.fileno()).st_size
            while left:
                try:
                    done = os.copy_file_range(source.fileno(), file.fileno(), left, None, position)
                except (OSError, AttributeError) as error:  # not between file systems, nor on every one
                    if getattr(error, "errno", None) in _FULL:
                        raise
                    done = 0
                if not done:
                    rest = source.read()
                    file.seek(position)
                    write_all(file, rest)
                    return position + len(rest)
                position += done
                left -= done
        return position

    def commit(self, epoch: int) -> None:
        """Appends an epoch's batches; if that fails, they stay staged."""
        with self._later.lock, self._staging.writing():
            if epoch <= self._through:
                return
            staged = self._staging.batches(self._through, epoch)
            if staged:
                position = self._length
                for item in staged:
                    position = self._copy(item.path, position)
                self._length = position  # all or nothing of an epoch: a failed one is appended as a whole
                self.dirty = True
                self._later.ask()
            self._through = epoch
            if self._length >= self._file_size:
                self.sync()
                self._close_file()
                # Saved before anything is appended: staged batches belong to one file only.
                self._number, self._length, self.dirty = self._number + 1, 0, True
                self.sync()

    def close(self) -> None:
        """Makes all durable."""
        with self._later.lock, self._staging.writing():
            self._later.cancel()
            try:
                self.sync()
            finally:
                self._close_file()

    def _staged(self, epoch: int) -> bytes:
        return b"".join(item.path.read_bytes() for item in self._staging.batches(self._through, epoch))

    def _open(self) -> FileIO:
        if self._file is None:
            path = self._folder / f"part-{self._number:010d}.jsonl"
            path.touch()
            self._file = FileIO(os.fspath(path), "r+b")  # unbuffered: a buffer would write again later
            sync_folder(self._folder)
        return self._file

    def _sync_later(self) -> None:
        with self._staging.writing():
            self.sync()

    def sync(self) -> None:
        """Makes the last file durable, then saves the state and drops the batches."""
        if not self.dirty:
            return
        if self._file is not None:
            os.fsync(self._file.fileno())
        state = {
            "origin": self._origin,
            "number": self._number,
            "length": self._length,
            "through": self._through,
        }
        self._staging.save(state)
        self._staging.drop(self._through)
        self.dirty = False

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_segments: dict[Path, Segments] = {}


def segments(folder: Path) -> Segments:
    """This process's segments of a folder, shared by the sinks of several streams."""
    if folder not in _segments:
        _segments[folder] = Segments(folder)
    return _segments[folder]
