"""Objects whose names ascend: found by listing behind the last one that was read.

There is one partition. An offset is ``[name, objects]``: the last object that was read, and those of the
range that ends there, each with its size and its ETag. So a plan names all that its epoch reads, a retry
reads the same, and neither the driver nor the store has more than a window of a prefix, however many objects
it has. An object that appears later under a name before the last one is never found.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from millwheel.errors import InputError
from millwheel.injectors.object_folder import expression
from millwheel.injectors.object_path import ObjectPath
from millwheel.injectors.object_path import client as client_of
from millwheel.model.injector import Offset
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.objects import explained

PARTITION = "objects"
WINDOW = 2_000  # objects known ahead of what is read: two pages of a listing, and the size of a plan
PAUSE = 1.0  # seconds until a prefix without new objects is listed again
_WILD = re.compile(r"[*\[]")
_BYTES = 200  # of a record, until some were read: it sizes epochs

Object = list[Any]
"""Name, size, ETag."""


class ObjectSequence:
    """The objects of a pattern by name. Invariant: the window follows the commits."""

    def __init__(self, pattern: str, *, may_grow: bool) -> None:
        self._pattern, _, self._parameters = pattern.partition("?")
        wild = _WILD.search(self._pattern)
        self._prefix = self._pattern[: wild.start() if wild else len(self._pattern)].rpartition("/")[0]
        self._matches = re.compile(expression(self._pattern[len(self._prefix) + 1 :]))
        self._may_grow = may_grow
        self._read: Offset = None
        self._window: list[Object] = []
        self._complete = False
        self._again = 0.0

    def begin(self) -> None:
        """Lists again: a run begins."""
        self._complete, self._again = False, 0.0

    def committed(self, offset: Offset) -> None:
        """Takes note of what has been read, by this driver or a former one."""
        if offset is not None and (self._read is None or offset[0] >= self._read[0]):
            self._read = offset
            self._window = [one for one in self._window if one[0] > offset[0]]

    def look(self) -> Mapping[str, Offset]:
        """Returns how far one may read now."""
        if len(self._window) < WINDOW // 2 and (self._may_grow or not self._complete):
            self._fill()
        if not self._window:
            if self._read is None and not self._may_grow:
                raise InputError(
                    f"no object matches {self._pattern}: fix the pattern, or follow it (follow=True) to wait"
                )
            return {PARTITION: self._read}
        return {PARTITION: [self._window[-1][0], list(self._window)]}

    def _fill(self) -> None:
        if time.monotonic() < self._again:
            return
        behind = self._window[-1][0] if self._window else self._read[0] if self._read is not None else ""
        for one in self._list(behind):
            self._window.append(one)
            if len(self._window) >= WINDOW:
                return
        self._complete = True
        self._again = time.monotonic() + PAUSE

    def _list(self, behind: str) -> Iterator[Object]:
        if "://" not in self._prefix:
            return self._list_folder(self._prefix, "", behind)
        return self._list_objects(behind)

    def _list_objects(self, behind: str) -> Iterator[Object]:
        """Yields the objects after a name, page by page, in the order of names."""
        import obstore

        client = client_of(self._prefix, self._parameters)
        last = behind
        with explained(f"{self._prefix}?{self._parameters}", InputError):
            for page in obstore.list(client, offset=behind or None):
                for one in page:
                    if one["path"] < last:
                        raise InputError(
                            f"{self._prefix} is not listed in the order of names: use Files instead"
                        )
                    last = one["path"]
                    if self._matches.fullmatch(last):
                        yield [last, one["size"], (one["e_tag"] or "").strip('"')]

    def _list_folder(self, folder: str, path: str, behind: str) -> Iterator[Object]:
        """Yields the files below a folder after a name, in the order of full names."""
        try:
            with os.scandir(folder) as found:
                entries = [(entry.name + "/" * entry.is_dir(), entry.is_dir()) for entry in found]
        except OSError as error:
            raise InputError(f"the folder {folder} cannot be listed ({error})") from error
        for name, is_folder in sorted(entries):
            whole = path + name
            if is_folder:
                if whole > behind or behind.startswith(whole):
                    yield from self._list_folder(f"{folder}/{name.rstrip('/')}", whole, behind)
            elif whole > behind and self._matches.fullmatch(whole):
                status = os.stat(f"{folder}/{name}")
                yield [whole, status.st_size, f"{status.st_mtime_ns:x}"]

    def low_watermark(self, offset: Offset) -> int:
        """Returns the watermark after an offset: `MIN_TIME`, or `MAX_TIME` at the end."""
        if self._may_grow or not self._complete or offset is None:
            return MIN_TIME
        last = self._window[-1][0] if self._window else offset[0]
        return MAX_TIME if offset[0] >= last else MIN_TIME

    def bound(self, start: Offset, end: Offset, records: int) -> Offset:
        """Returns an offset about ``records`` behind ``start``, at least one object on."""
        left = records * _BYTES
        taken: list[Object] = []
        for one in pieces(start, end):
            if taken and one[1] > left:
                return [taken[-1][0], taken]
            taken.append(one)
            left -= one[1]
        return end

    def size(self, start: Offset, end: Offset) -> int:
        """Returns about how many records a range has."""
        return max(int(sum(one[1] for one in pieces(start, end))) // _BYTES, 1)

    def read(self, start: Offset, end: Offset, read: Callable[[str, int], Iterable[Any]]) -> Iterator[Any]:
        """Yields what ``read`` returns for each object; a replaced one is an error."""
        for name, size, tag in pieces(start, end):
            if "://" in self._prefix:
                yield from read(ObjectPath(f"{self._prefix}/{name}", self._parameters, tag, size), size)
                continue
            path = f"{self._prefix}/{name}"
            status = os.stat(path) if os.path.exists(path) else None
            if status is None or (status.st_size, f"{status.st_mtime_ns:x}") != (size, tag):
                raise InputError(
                    f"the file {path} is gone or changed since it was found: put new content under a new name"
                )
            yield from read(path, size)


def pieces(start: Offset, end: Offset) -> list[Object]:
    """Returns the objects of a range: those of its end that are behind its start.

    >>> pieces(["a", []], ["c", [["a", 5, ""], ["b", 6, ""], ["c", 7, ""]]])
    [['b', 6, ''], ['c', 7, '']]
    """
    return [one for one in end[1] if start is None or one[0] > start[0]]
