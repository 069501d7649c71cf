"""Files that grow by what committed epochs have staged, each batch once.

Invariant: the files are the batches of all committed epochs, in order, as far as they go. The saved state
says up to which epoch and byte that is durable; behind it, the last file holds the beginning, or all, of
what is still staged. So a driver that was killed leaves nothing to undo: the next one adds the rest. And
a driver that hung, was taken over, and wakes up in the middle writes the same bytes to the same place.
"""

from __future__ import annotations

import os
import re
from io import FileIO
from pathlib import Path

from millwheel.sinks.staging import Later, Staging, sync_folder, write_all

_SYNC_AFTER = 1.0  # seconds that batches stay staged: a disk is not made to sync twice in each epoch
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
        self._dirty = False

    def begin(self, origin: str, epoch: int, file_size: int) -> None:
        """Takes over from the last driver, and adds what it left."""
        with self._later.lock, self._staging.writing():
            self._close_file()
            state = self._staging.take()
            self._origin, self._file_size, self._dirty = origin, file_size, True
            if state.get("origin") == origin:
                self._number, self._length = state["number"], state["length"]
                self._through = state["through"]
                self._complete(epoch)
            else:
                self._staging.drop()
                self._number, self._length, self._through = self._last() + 1, 0, epoch
            self._sync()

    def _last(self) -> int:
        found = [_NAME.fullmatch(name) for name in os.listdir(self._folder)]
        return max((int(match[1]) for match in found if match), default=0)

    def _complete(self, epoch: int) -> None:
        """Makes of the last file what it must be, without touching what is right in it."""
        data = self._staged(epoch)
        if data:
            file = self._open()
            file.seek(self._length)
            there = file.read()
            if not data.startswith(there):  # the machine lost power, and the file's end with it
                file.truncate(self._length)
                there = b""
            self._length += len(there)
            self._add(data[len(there) :])
        self._through = epoch

    def _add(self, data: bytes) -> None:
        file = self._open()
        file.seek(self._length)  # not at the end, wherever another driver has brought that
        write_all(file, data)
        self._length += len(data)

    def commit(self, epoch: int) -> None:
        """Adds what an epoch has staged. Where that fails, it stays staged, and the next driver adds it."""
        with self._later.lock, self._staging.writing():
            if epoch <= self._through:
                return
            data = self._staged(epoch)
            if data:
                self._add(data)
                self._dirty = True
                self._later.ask()
            self._through = epoch
            if self._length >= self._file_size:
                self._sync()
                self._close_file()
                # Saved before anything is added to it: what is staged belongs to one file only.
                self._number, self._length, self._dirty = self._number + 1, 0, True
                self._sync()

    def close(self) -> None:
        """Makes all durable."""
        with self._later.lock, self._staging.writing():
            self._later.cancel()
            try:
                self._sync()
            finally:
                self._close_file()

    def _staged(self, epoch: int) -> bytes:
        return b"".join(item.path.read_bytes() for item in self._staging.batches(self._through, epoch))

    def _open(self) -> FileIO:
        if self._file is None:
            path = self._folder / f"part-{self._number:010d}.jsonl"
            path.touch()
            self._file = FileIO(os.fspath(path), "r+b")  # past any buffer, which would write again later
            sync_folder(self._folder)
        return self._file

    def _sync_later(self) -> None:
        with self._staging.writing():
            self._sync()

    def _sync(self) -> None:
        if not self._dirty:
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
        self._dirty = False

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_segments: dict[Path, Segments] = {}


def segments(folder: Path) -> Segments:
    """This process's segments of a folder: the sinks of several streams may share one."""
    if folder not in _segments:
        _segments[folder] = Segments(folder)
    return _segments[folder]
