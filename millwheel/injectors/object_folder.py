"""The objects of a pattern: they appear whole, and never change.

An object is identified by its name, its ETag and its size. Other content under the
name of an object that was read is an error, like a file that begins with other bytes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

from millwheel.errors import InputError
from millwheel.injectors import parquet
from millwheel.injectors.file_identity import Identity
from millwheel.injectors.folder import File
from millwheel.injectors.object_path import SUFFIX, ObjectPath
from millwheel.injectors.object_path import changed as changed_message
from millwheel.injectors.object_path import client as client_of
from millwheel.objects import explained

PAUSE = 10  # times the duration of a listing until the next one: requests cost money
_WILD = re.compile(r"[*\[]")


class ObjectFolder:
    """The objects of a pattern. Invariant: an object has one name in `files`."""

    def __init__(self, pattern: str, form: Callable[[str], str], *, may_grow: bool = False) -> None:
        self.pattern, _, self.parameters = pattern.partition("?")
        self._form = form
        self._may_grow = may_grow
        wild = _WILD.search(self.pattern)
        self._prefix = self.pattern[: wild.start() if wild else len(self.pattern)].rpartition("/")[0]
        self._matches = re.compile(expression(self.pattern[len(self._prefix) + 1 :]))
        self._seen: dict[str, int] | None = None
        self._again = 0.0
        self.files: dict[str, File] = {}
        """By the name of the partition."""
        self._known: dict[str, str] = {}

    def committed(self, name: str, offset: int | None) -> None:
        """Record how far an object has been read, by this driver or an earlier one."""
        if name not in self.files:
            path = ObjectPath.of(name, self.parameters)
            self.files[name] = File(Identity.parse(path), path, end=self._end(path, path.size))
            self._known[str(path)] = name
        self.files[name].read = max(self.files[name].read, offset or 0)

    def paths(self) -> Iterator[str]:
        """Yield all current matches of the pattern."""
        return (entry[0] for entry in self._list())

    def _list(self) -> Iterator[tuple[str, int, str, int]]:
        """Yield URL, size, ETag and time of each object, page by page."""
        import obstore

        client = client_of(self._prefix, self.parameters)
        with explained(f"{self._prefix}?{self.parameters}", InputError):
            for page in obstore.list(client):
                for one in page:
                    if self._matches.fullmatch(one["path"]):
                        tag = (one["e_tag"] or "").strip('"')
                        changed = int(one["last_modified"].timestamp() * 1_000_000)
                        yield f"{self._prefix}/{one['path']}", one["size"], tag, changed

    def look(self) -> dict[str, int]:
        """Return, by object, how far it may be read."""
        if self._seen is not None and (not self._may_grow or time.monotonic() < self._again):
            return self._seen
        started = time.monotonic()
        there = set()
        for url, size, tag, changed in self._list():
            name = f"{url}#{changed:x}-{size:x}-{tag}"
            name = self._name(url, size, tag, name)
            there.add(name)
            if name not in self.files or self.files[name].changed < 0:
                path = ObjectPath(url, self.parameters, tag, size)
                file = self.files.setdefault(name, File(Identity.parse(url), path))
                file.path, file.size, file.changed = path, size, changed
                file.end = self._end(url, size)
                self._known[url] = name
        self._complain_of_lost(there)
        if not self.files and not self._may_grow:
            raise InputError(
                f"no object matches {self.pattern}: fix the pattern, or follow it (follow=True) to wait"
            )
        self._seen = {name: file.end for name, file in self.files.items() if file.end}
        self._again = time.monotonic() + (time.monotonic() - started) * PAUSE
        return self._seen

    def _end(self, url: str, size: int) -> int:
        """Return the end of an object, or 0 if it is empty.

        A table's offsets are rows. They are counted when it is read, not when it is listed.
        """
        return parquet.END + size if size and self._form(url) == "parquet" else size

    def _name(self, url: str, size: int, tag: str, new: str) -> str:
        """Return the name of an object's partition; other content is an error."""
        known = self._known.get(url)
        if known is None:
            return new
        found = SUFFIX.fullmatch(known[len(url) :])
        if found is not None and (int(found[2], 16), found[3]) != (size, tag):
            raise InputError(changed_message(url))
        return known

    def _complain_of_lost(self, there: set[str]) -> None:
        for name, file in self.files.items():
            if name not in there and file.end > file.read:
                raise InputError(
                    f"the object {file.path} was removed before it was read to its end: restore it"
                )


def expression(pattern: str) -> str:
    """Return a pattern as a regular expression: ``**/`` is any number of folders.

    >>> [bool(re.fullmatch(expression(each), "a/b/c.gz")) for each in ("**/*.gz", "*.gz")]
    [True, False]
    """
    found = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            found.append("(?:[^/]+/)*")
            at += 3
        elif pattern.startswith("**", at):
            found.append(".*")
            at += 2
        elif pattern[at] == "*":
            found.append("[^/]*")
            at += 1
        elif pattern[at] == "[" and "]" in pattern[at:]:
            end = pattern.index("]", at)
            inside = pattern[at + 1 : end]
            found.append(f"[{'^' + inside[1:] if inside.startswith('!') else inside}]")
            at = end + 1
        else:
            found.append(re.escape(pattern[at]))
            at += 1
    return "".join(found)
