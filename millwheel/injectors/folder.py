"""The files of a pattern: new, grown, renamed, or invalid ones."""

from __future__ import annotations

import glob as globbing
import os
import stat as modes
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors import parquet
from millwheel.injectors.file_identity import Identity, identify, open_same, packs, unpacked_size
from millwheel.injectors.inotify import Watch
from millwheel.injectors.packed import is_packed, stem

_TAIL = 1 << 16  # bytes searched for the last line end of a file that may grow
MANY = 1_000  # files: with more than that, two scans are
ALL_EVERY = 1.0  # seconds between scans of all files of a watched folder
PAUSE = 10  # times the duration of the first apart, to limit the load of 10,000 files
_TRIES = 10  # scans, if files are renamed or removed during each: rotating a log takes less than one


@dataclass
class File:
    """A known file: its identity, its current path, and how far it may be read."""

    identity: Identity
    path: str
    end: int = 0
    read: int = 0
    """How far it is known to have been read."""
    size: int = -1
    changed: int = -1
    """Its size and time of change at the last check."""


TABLES = ("parquet", "avro")
"""Formats of files that are written once, and known by their first kilobyte."""


class _Index:
    """Known files by their path and by their place on the disk.

    Valid until one of them moves.
    """

    def __init__(self, files: Iterable[File]) -> None:
        self.by_path: dict[str, File] = {}
        self.places: set[tuple[int, int]] = set()
        for file in files:
            self.add(file)

    def add(self, file: File) -> None:
        self.by_path[file.path] = file
        self.places.add(file.identity.place)


class Folder:
    """The files of a pattern. Invariant: a file has one name in `files`."""

    def __init__(
        self, pattern: str, form: Callable[[str], str], *, may_grow: bool = False, named: bool = True
    ) -> None:
        self._pattern = pattern
        self._form = form
        self._may_grow = may_grow
        self._named = named  # the columns of CSV, from the first line
        self._seen: dict[str, int] | None = None
        self._again = 0.0
        self._packed: dict[tuple[int, int], str] = {}
        self._all_at = 0.0
        self._index: _Index | None = None
        self.watch: Watch | None = None
        """Reports which files have changed, if the folder is watched."""
        self.files: dict[str, File] = {}
        """By the name of the partition."""

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a task needs."""
        return {**self.__dict__, "watch": None, "_index": None}

    def committed(self, name: str, offset: int | None) -> None:
        """Records how far a file has been read, by this driver or an earlier one."""
        if name not in self.files:
            identity = Identity.parse(name)
            self.files[name] = File(identity, identity.path)
            self._index = None
        self.files[name].read = max(self.files[name].read, offset or 0)

    def paths(self) -> Iterator[str]:
        """All current matches of the pattern."""
        return globbing.iglob(self._pattern, recursive=True)

    def look(self) -> dict[str, int]:
        """By file: how far it may be read. Files that cannot grow are checked once."""
        for _ in range(_TRIES):
            try:
                return self._look()
            except FileNotFoundError as error:  # renamed or removed since its status was read
                gone = error
                self._index = None
                self._again = self._all_at = 0.0
        if self._seen is None:
            raise InputError(f"the files of {self._pattern} are renamed or removed all the time: {gone}")
        return self._seen

    def _look(self) -> dict[str, int]:
        if self._seen is not None and self.watch is not None and self._look_at_changes(self.watch):
            return self._seen
        if self._seen is not None and (not self._may_grow or time.monotonic() < self._again):
            return self._seen
        started = time.perf_counter()
        found = self._found()
        if not found and not self._may_grow:
            raise InputError(
                f"no file matches {self._pattern}: fix the pattern, or follow it (follow=True) "
                "to wait for files"
            )
        for path in self._match(found):
            self._add(path, found[path])
        self._index = None
        self._seen = self._ends()
        took = time.perf_counter() - started
        now = time.monotonic()
        self._again = now + took * PAUSE if len(found) > MANY else 0.0
        self._all_at = now + max(ALL_EVERY, took * PAUSE)
        return self._seen

    def _look_at_changes(self, watch: Watch) -> bool:
        """Checks the files written since the last scan; False: all must be checked.

        A scan of 600 files takes 4 ms. What is done here does not grow with the number of files, but for
        a copy of the answer.
        """
        changed = watch.changes()
        if changed is None or time.monotonic() >= self._all_at:
            return False
        found = {path: stat for path in sorted(changed) if (stat := stat_file(path)) is not None}
        index = self._index = self._index or _Index(self.files.values())
        new: dict[tuple[int, int], str] = {}
        for path, stat in found.items():
            file, place = index.by_path.get(path), (stat.st_ino, stat.st_dev)
            if file is None:
                if place in index.places or place in new or place in self._packed or is_packed(path):
                    return False  # renamed, linked, replaced or packed: compare it with all others
                new[place] = path
            elif file.identity.place != place or not self._is(file, path, stat):
                return False
        seen = dict(self._seen or {})
        in_order = True
        for path, stat in found.items():
            file = index.by_path.get(path)
            if file is not None:
                self._update(file, path, stat)
                in_order = in_order and file.identity.name in seen
                seen[file.identity.name] = file.end
        for path in new.values():
            file = self._add(path, found[path])
            if file is not None:
                index.add(file)
                seen[file.identity.name] = file.end
        self._seen = seen if in_order else self._ends()
        return True

    def _ends(self) -> dict[str, int]:
        """How far each file with something to read may be read, in the order of `files`."""
        return {name: file.end for name, file in self.files.items() if file.end}

    def _found(self) -> dict[str, os.stat_result]:
        """The existing files, each under one of its names: links do not count."""
        found = {path: stat for path in sorted(self.paths()) if (stat := stat_file(path)) is not None}
        names: dict[tuple[int, int], list[str]] = {}
        for path, stat in found.items():
            if stat.st_ino:  # some network file systems have none
                names.setdefault((stat.st_ino, stat.st_dev), []).append(path)
        if len(names) < len(found):
            known = {file.path for file in self.files.values()}
            for linked in names.values():
                if len(linked) > 1:
                    kept = min(linked, key=lambda path: (path not in known, os.path.islink(path), path))
                    for path in linked:
                        if path != kept:
                            del found[path]
        return found

    def _match(self, found: dict[str, os.stat_result]) -> list[str]:
        """Recognises known files; returns the paths of the others."""
        by_place = {file.identity.place: file for file in self.files.values() if file.identity.inode}
        missing = {file.identity.name: file for file in self.files.values()}
        unknown = []
        for path, stat in found.items():
            if (packed := self._packed.get((stat.st_ino, stat.st_dev))) is not None:
                missing.pop(packed, None)
                continue
            file = by_place.get((stat.st_ino, stat.st_dev))
            if file is not None and self._is(file, path, stat):
                missing.pop(file.identity.name, None)
                self._update(file, path, stat)
            else:
                unknown.append(path)
        by_path = {file.path: file for file in missing.values()}
        there = {file.path for file in self.files.values()} - by_path.keys()
        new = []
        for path in unknown:
            file = by_path.get(path)
            if file is not None and file.identity.begins(path, found[path]):
                # A copy under the same name: the disk has another number, or the file was edited.
                missing.pop(file.identity.name, None)
                self._update(file, path, found[path])
            elif is_packed(path) and stem(path) in there and self._is_being_packed(path):
                continue  # once the original is gone, it is compared with it
            elif not is_packed(path) or not self._is_packed(path, found[path], missing):
                new.append(path)
        return new

    def _is(self, file: File, path: str, stat: os.stat_result) -> bool:
        """Whether the file at a path is the known one, and not another with its inode."""
        if file.path == path and (file.size, file.changed) == (stat.st_size, stat.st_mtime_ns):
            return True
        if path == file.path and self._form(path) not in TABLES and stat.st_size < max(file.end, file.read):
            _complain_of_size(file, stat.st_size)
        if file.identity.begins(path, stat):
            return True
        if path == file.path:
            raise InputError(
                f"the file {path} changed: it does not begin with the same bytes as when it was "
                "read; append to a log, or move it away and begin a new one"
            )
        return False

    def _is_being_packed(self, path: str) -> bool:
        """Whether a packed file is a copy, perhaps unfinished, of the file beside it."""
        try:
            return packs(path, stem(path))
        except OSError:
            return False  # one of them was removed meanwhile: the next scan finds what there is

    def _is_packed(self, path: str, stat: os.stat_result, missing: dict[str, File]) -> bool:
        """Whether a packed file is a copy of a file that was read."""
        for name, file in missing.items():
            if file.identity.length and file.identity.begins_packed(path):
                if file.read < unpacked_size(path):
                    raise InputError(
                        f"the file {file.path} was packed to {path} before it was read to its end: "
                        "unpack it, and pack logs later (logrotate: delaycompress)"
                    )
                self._packed[stat.st_ino, stat.st_dev] = name
                missing.pop(name)
                return True
        return False

    def _update(self, file: File, path: str, stat: os.stat_result) -> None:
        file.path = path
        if (file.size, file.changed) != (stat.st_size, stat.st_mtime_ns):
            form = self._form(path)
            if form not in TABLES:
                file.end = self._end(file, stat)
            else:
                rows = parquet.rows(path) if form == "parquet" else stat.st_size
                if rows < file.read or (file.size >= 0 and stat.st_size != file.size):
                    raise InputError(f"the file {path} changed since it was read: a table is written once")
                file.end = rows
            file.size, file.changed = stat.st_size, stat.st_mtime_ns

    def _add(self, path: str, stat: os.stat_result) -> File | None:
        """The new file; None while there is nothing in it to know it by."""
        if self.watch is not None and (stat.st_nlink > 1 or os.path.islink(path)):
            self.watch.lose()  # it may be written through another link
        form = self._form(path)
        if form in TABLES:
            identity = identify(path, stat, stat.st_size, None)
        else:
            end = self._end(File(Identity.parse(path), path), stat)
            lines = None if is_packed(path) else 2 if form == "csv" and self._named else 1
            identity = identify(path, stat, end, lines)
            if not end or (
                lines == 2 and not is_packed(path) and identity.length == end and _one_line(path, end)
            ):
                return None  # it is empty, or has only a header
        file = File(identity, path)
        self._update(file, path, stat)
        self.files[identity.name] = file
        return file

    def _end(self, file: File, stat: os.stat_result) -> int:
        """How far a file may be read: to its end, or its last whole line if it may grow."""
        known, size = max(file.end, file.read), stat.st_size
        if size < known:
            _complain_of_size(file, size)
        if size == known or not self._may_grow or is_packed(file.path):
            return size
        with open_same(file.path, stat) as data:
            position = size
            while position > known:
                begin = max(known, position - _TAIL)
                data.seek(begin)
                last = data.read(position - begin).rfind(b"\n")
                if last >= 0:
                    return begin + last + 1
                position = begin
        return known


def _complain_of_size(file: File, size: int) -> None:
    known = max(file.end, file.read)
    raise InputError(
        f"the file {file.path} shrank from {known:,} to {size:,} bytes: lines that were read were removed; "
        "append to a log, or move it away and begin a new one under another name"
    )


def _one_line(path: str, end: int) -> bool:
    with open(path, "rb") as file:
        return len(file.readline()) >= end


def stat_file(path: str) -> os.stat_result | None:
    """The status of a regular file; None if it was removed."""
    try:
        stat = os.stat(path)
    except OSError:
        return None  # it was removed meanwhile
    return stat if modes.S_ISREG(stat.st_mode) else None
