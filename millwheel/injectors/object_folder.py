"""What a pattern matches on object storage: objects appear whole, and are never changed.

An object is known by its name, its ETag and its size. One that is put again with other content under the
name of one that was read is an error, as a file is that begins with other bytes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from millwheel.errors import InputError
from millwheel.injectors.file_identity import Identity
from millwheel.injectors.folder import File
from millwheel.injectors.object_path import SUFFIX, ObjectPath
from millwheel.injectors.object_path import changed as changed_message
from millwheel.injectors.object_path import client as client_of
from millwheel.objects import explained

_PAUSE = 10  # times the length of a listing until the next one: it costs requests, and money
_WILD = re.compile(r"[*\[]")


class ObjectFolder:
    """The objects of a pattern. Invariant: an object has one name in `files`, and it never changes."""

    def __init__(self, pattern: str, *, may_grow: bool = False) -> None:
        self.pattern, _, self.parameters = pattern.partition("?")
        self._may_grow = may_grow
        wild = _WILD.search(self.pattern)
        self._prefix = self.pattern[: wild.start() if wild else len(self.pattern)].rpartition("/")[0]
        self._matches = re.compile(_expression(self.pattern[len(self._prefix) + 1 :]))
        self._seen: dict[str, int] | None = None
        self._again = 0.0
        self.files: dict[str, File] = {}
        """By the name of the partition."""
        self._known: dict[str, str] = {}

    def committed(self, name: str, offset: int | None) -> None:
        """Take note of how far an object has been read, by this driver or a former one."""
        if name not in self.files:
            path = ObjectPath.of(name, self.parameters)
            self.files[name] = File(Identity.parse(path), path)
            self._known[str(path)] = name
        self.files[name].read = max(self.files[name].read, offset or 0)

    def paths(self) -> Iterator[str]:
        """Yield all that the pattern matches now."""
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
            if name not in self.files or not self.files[name].end:
                path = ObjectPath(url, self.parameters, tag)
                file = self.files.setdefault(name, File(Identity.parse(url), path))
                file.path, file.end, file.size, file.changed = path, size, size, changed
                self._known[url] = name
        self._complain_of_lost(there)
        if not self.files and not self._may_grow:
            raise InputError(
                f"no object matches {self.pattern}: fix the pattern, or follow it (follow=True) to wait"
            )
        self._seen = {name: file.end for name, file in self.files.items() if file.end}
        self._again = time.monotonic() + (time.monotonic() - started) * _PAUSE
        return self._seen

    def _name(self, url: str, size: int, tag: str, new: str) -> str:
        """Return the name that an object is known by; one of other content is an error."""
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
                    f"the object {file.path} is gone before it was read to its end: bring it back"
                )


def _expression(pattern: str) -> str:
    """Return a pattern of names as a regular expression: ``**/`` is any number of folders.

    >>> [bool(re.fullmatch(_expression(each), "a/b/c.gz")) for each in ("**/*.gz", "*.gz")]
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
