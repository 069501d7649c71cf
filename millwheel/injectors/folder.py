"""What a pattern of files matches, look by look: which file is new, has grown, was renamed, or is spoilt."""

from __future__ import annotations

import glob as globbing
import os
import stat as modes
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors import parquet
from millwheel.injectors.file_identity import Identity, identify, unpacked_size
from millwheel.injectors.inotify import Watch
from millwheel.injectors.packed import is_packed

_TAIL = 1 << 16  # bytes looked at for the last line end of a file that may still grow
_MANY = 1_000  # files: of more than that, two looks are
_ALL_EVERY = 1.0  # seconds between looks at all files of a folder that is watched
_PAUSE = 10  # times the length of the first apart, so that a folder of 10,000 does not keep a core busy


@dataclass
class File:
    """A file that was seen: its identity, where it is now, and how far it may be read."""

    identity: Identity
    path: str
    end: int = 0
    read: int = 0
    """How far it is known to be read."""
    size: int = -1
    changed: int = -1
    """Its size and time of change when it was last looked into."""


class Folder:
    """The files of a pattern. Invariant: a file has one name in `files`, whatever it is called now."""

    def __init__(
        self, pattern: str, form: Callable[[str], str], *, may_grow: bool = False, named: bool = True
    ) -> None:
        self._pattern = pattern
        self._form = form
        self._may_grow = may_grow
        self._named = named  # the columns of CSV, by the first line
        self._seen: dict[str, int] | None = None
        self._again = 0.0
        self._packed: dict[tuple[int, int], str] = {}
        self._all_at = 0.0
        self.watch: Watch | None = None
        """Reports which files have changed, where the folder is watched."""
        self.files: dict[str, File] = {}
        """By the name of the partition."""

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs."""
        return {**self.__dict__, "watch": None}

    def committed(self, name: str, offset: int | None) -> None:
        """Told how far a file has been read, by this driver or a former one."""
        if name not in self.files:
            identity = Identity.parse(name)
            self.files[name] = File(identity, identity.path)
        self.files[name].read = max(self.files[name].read, offset or 0)

    def paths(self) -> Iterator[str]:
        """All that the pattern matches now."""
        return globbing.iglob(self._pattern, recursive=True)

    def look(self) -> dict[str, int]:
        """By file: how far it may be read. Files that cannot grow are looked at once."""
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
        self._seen = {name: file.end for name, file in self.files.items() if file.end}
        took = time.perf_counter() - started
        now = time.monotonic()
        self._again = now + took * _PAUSE if len(found) > _MANY else 0.0
        self._all_at = now + max(_ALL_EVERY, took * _PAUSE)
        return self._seen

    def _look_at_changes(self, watch: Watch) -> bool:
        """Looks at the files that were written since the last look; False: all must be looked at.

        A look at all of 600 files takes 4 ms.
        """
        changed = watch.changes()
        if changed is None or time.monotonic() >= self._all_at:
            return False
        found = {path: stat for path in sorted(changed) if (stat := _stat(path)) is not None}
        by_path = {file.path: file for file in self.files.values()} if found else {}
        places = {file.identity.place for file in by_path.values()}
        for path, stat in found.items():
            file = by_path.get(path)
            place = (stat.st_ino, stat.st_dev)
            known = file is not None and file.identity.place == place
            if not known and (file is not None or place in places or is_gzip(path) or place in self._packed):
                return False  # renamed, linked, replaced or packed: it is compared with all others
        for path in self._match(found):
            self._add(path, found[path])
        if found:
            self._seen = {name: file.end for name, file in self.files.items() if file.end}
        return True

    def _found(self) -> dict[str, os.stat_result]:
        """The files that there are, each under one of its names: links are no further files."""
        found = {path: stat for path in sorted(self.paths()) if (stat := _stat(path)) is not None}
        names: dict[tuple[int, int], list[str]] = {}
        for path, stat in found.items():
            if stat.st_ino:  # some file systems of the network have none
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
        """Recognises the files that are known; returns the paths of the others."""
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
        new = []
        for path in unknown:
            file = by_path.get(path)
            if file is not None and file.identity.begins(path):
                # A copy under the same name: the disk has another number, or the file was edited.
                missing.pop(file.identity.name, None)
                self._update(file, path, found[path])
            elif not is_gzip(path) or not self._is_packed(path, found[path], missing):
                new.append(path)
        return new

    def _is(self, file: File, path: str, stat: os.stat_result) -> bool:
        """Whether what is at a file's place is still that file, and not one that got its inode."""
        if file.path == path and (file.size, file.changed) == (stat.st_size, stat.st_mtime_ns):
            return True
        if path == file.path and self._form(path) != "parquet" and stat.st_size < max(file.end, file.read):
            _complain_of_size(file, stat.st_size)
        if file.identity.begins(path):
            return True
        if path == file.path:
            raise InputError(
                f"the file {path} changed: it does not begin with the bytes that it began with when it was "
                "read; append to a log, or move it away and begin a new one"
            )
        return False

    def _is_packed(self, path: str, stat: os.stat_result, missing: dict[str, File]) -> bool:
        """Whether a gzip file is a file that was read and then packed."""
        for name, file in missing.items():
            if file.identity.length and file.identity.begins_packed(path):
                if file.read < unpacked_size(path):
                    raise InputError(
                        f"the file {file.path} was packed to {path} before it was read to its end: "
                        "unpack it, and have logs packed later (logrotate: delaycompress)"
                    )
                self._packed[stat.st_ino, stat.st_dev] = name
                missing.pop(name)
                return True
        return False

    def _update(self, file: File, path: str, stat: os.stat_result) -> None:
        file.path = path
        if (file.size, file.changed) != (stat.st_size, stat.st_mtime_ns):
            if self._form(path) != "parquet":
                file.end = self._end(file, stat.st_size)
            else:
                rows = parquet.rows(path)
                if rows < file.read or (file.size >= 0 and stat.st_size != file.size):
                    raise InputError(f"the file {path} changed since it was read: a table is written once")
                file.end = rows
            file.size, file.changed = stat.st_size, stat.st_mtime_ns

    def _add(self, path: str, stat: os.stat_result) -> None:
        if self.watch is not None and (stat.st_nlink > 1 or os.path.islink(path)):
            self.watch.lose()  # it may be written under another name, elsewhere
        form = self._form(path)
        if form == "parquet":
            identity = identify(path, stat, stat.st_size, None)
        else:
            end = self._end(File(Identity.parse(path), path), stat.st_size)
            lines = None if is_packed(path) else 2 if form == "csv" and self._named else 1
            identity = identify(path, stat, end, lines)
            if not end or (
                lines == 2 and not is_packed(path) and identity.length == end and _one_line(path, end)
            ):
                return  # nothing is in it but, perhaps, a header
        file = File(identity, path)
        self._update(file, path, stat)
        self.files[identity.name] = file

    def _end(self, file: File, size: int) -> int:
        """How far a file may be read now: to its end, or to the last whole line of one that may grow."""
        known = max(file.end, file.read)
        if size < known:
            _complain_of_size(file, size)
        if size == known or not self._may_grow or is_packed(file.path):
            return size
        with open(file.path, "rb") as data:
            position = size
            while position > known:
                begin = max(known, position - _TAIL)
                data.seek(begin)
                last = data.read(position - begin).rfind(b"\n")
                if last >= 0:
                    return begin + last + 1
                position = begin
        return known


def is_gzip(path: str) -> bool:
    """Whether a file is packed, by its name."""
    return path.endswith(".gz")


def _complain_of_size(file: File, size: int) -> None:
    known = max(file.end, file.read)
    raise InputError(
        f"the file {file.path} shrank from {known:,} to {size:,} bytes: lines that were read are gone; "
        "append to a log, or move it away and begin a new one under another name"
    )


def _one_line(path: str, end: int) -> bool:
    with open(path, "rb") as file:
        return len(file.readline()) >= end


def _stat(path: str) -> os.stat_result | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None  # it went away meanwhile
    return stat if modes.S_ISREG(stat.st_mode) else None
