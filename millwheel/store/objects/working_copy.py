"""Working copies: the content of a log on this host's disk, shared by processes.

A copy is an environment of LMDB, with the embedded store's own code. A hidden entry has the
number up to which it is current, written in the transaction that applies an object of the log. A copy may be
lost at any time: it is made again from the newest snapshot and the log. So it is never synced; one from
before a restart of the machine is not used again.
"""

from __future__ import annotations

import copy
import fcntl
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from millwheel.store.base import Get, Shard
from millwheel.store.lmdb.environment import LmdbShard
from millwheel.store.lmdb.lmdb_errors import DATA, explained
from millwheel.store.lmdb.manifest import private_folder
from millwheel.store.objects.gaps import number_entry, number_of
from millwheel.store.objects.log import Puts

COPIES = "MILLWHEEL_COPIES"
"""The environment variable that names the folder of working copies."""
_MAP = 256 << 20  # address space, not disk; it doubles when it is full
_COURTESY = 10.0  # seconds to wait for other writers of this host; safety does not depend on it
_OURS = re.compile(r"[0-9a-z]+-[0-9a-f]{32}")  # a start of the machine, and the identity of a store
_UNUSED = 7 * 24 * 3600  # seconds after which an unused copy is removed


@dataclass
class _Opened:
    """An environment that this process has open, and its number of handles."""

    shard: LmdbShard
    handles: int = 1


_opened: dict[tuple[int, Path], _Opened] = {}
"""By process and folder: LMDB opens a folder once a process, never across a fork."""
_opening = threading.Lock()


class Moved(Exception):
    """A copy is not at the number that a change is for."""


def copies_folder() -> Path:
    """This host's folder of copies: MILLWHEEL_COPIES, or one for temporary files."""
    given = os.environ.get(COPIES)
    if given:
        return Path(given)
    return Path(tempfile.gettempdir()) / f"millwheel-copies-{os.getuid()}"


def remove_unused(folder: Path) -> None:
    """Removes copies unused for a week, or from before the machine was started.

    Nothing else is removed: the folder may be one that a user has chosen.
    """
    if not folder.is_dir():
        return
    boot = _boot()
    for path in folder.iterdir():
        with suppress(OSError):
            if not _OURS.fullmatch(path.name) or not any(path.glob("*.filling")):
                continue
            used = max(each.stat().st_mtime for each in (path, *path.glob("*.writing")))
            if not path.name.startswith(f"{boot}-") or time.time() - used > _UNUSED:
                shutil.rmtree(path, ignore_errors=True)


def _boot() -> str:
    """A name for this start of the machine, during which unsynced files are intact."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return "boot"


class WorkingCopy:
    """A copy of one log, shared by all processes of this host.

    A file beside it names the folder that is the copy, once that is filled. A refill uses
    another folder and then names that: a process that has the former one open continues with it, which is
    as good.
    """

    def __init__(self, store: str, name: str) -> None:
        self._folder = copies_folder() / f"{_boot()}-{store}"
        self._name = name
        self._opened: _Opened | None = None

    @property
    def shard(self) -> Shard:
        """The environment; only of a copy that is filled."""
        assert self._opened is not None
        return self._opened.shard

    def number(self) -> int | None:
        """The number up to which it is current; None: there is no copy yet."""
        if self._opened is None:
            path = self._named()
            if path is None:
                return None
            self._opened = _acquire(path)
        with self.shard.snapshot() as snapshot:
            return number_of(snapshot.get)

    def _named(self) -> Path | None:
        try:
            path = self._folder / (self._folder / f"{self._name}.current").read_text()
        except FileNotFoundError:
            return None
        return path if (path / DATA).exists() else None

    def another(self) -> WorkingCopy:
        """Another handle, for a thread: the environment is open until both are closed."""
        made = copy.copy(self)
        made._opened = None
        return made

    def apply(self, number: int, puts: Puts, deletes: Sequence[bytes]) -> None:
        """Applies the write of a number; one that is applied already is skipped."""

        def guard(get: Get) -> None:
            if number_of(get) != number - 1:
                raise Moved

        with suppress(Moved):
            self.shard.write([*puts, number_entry(number)], deletes, guard)

    def replace(self, fill: Callable[[Shard], None]) -> None:
        """Makes the copy again, or takes the one that another process has made meanwhile."""
        mine = self._opened.shard.path if self._opened is not None else None
        with self._lock("filling", None):
            found = self._named()
            if found is None or found == mine:
                found = self._fill(fill)
                if mine is not None:
                    shutil.rmtree(mine, ignore_errors=True)
            self.close()
            self._opened = _acquire(found)

    def discard(self) -> None:
        """Drops a damaged copy: no process opens it again, and its files are removed."""
        path = self._opened.shard.path if self._opened is not None else self._named()
        self.close()
        with self._lock("filling", None):
            if path is not None and self._named() == path:
                (self._folder / f"{self._name}.current").unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)

    def _fill(self, fill: Callable[[Shard], None]) -> Path:
        for left in self._folder.glob(f"{self._name}.unfinished-*"):
            shutil.rmtree(left, ignore_errors=True)
        part = self._folder / f"{self._name}.unfinished-{uuid.uuid4().hex[:8]}"
        shard = LmdbShard(part, sync=False, map_size=_MAP, checked=True)
        try:
            fill(shard)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        finally:
            shard.close()
        path = self._folder / f"{self._name}-{uuid.uuid4().hex[:8]}"
        pointer = self._folder / f"{self._name}.current"
        with explained(path):
            os.replace(part, path)
            pointer.with_suffix(".new").write_text(path.name)
            os.replace(pointer.with_suffix(".new"), pointer)
        return path

    @contextmanager
    def closing_gaps(self) -> Iterator[bool]:
        """Whether this process, of all of this host, is to fetch what the copy lacks."""
        with self._lock("gaps", 0.0) as mine:
            yield mine

    @contextmanager
    def courtesy(self) -> Iterator[None]:
        """Lets one writer of this host go first.

        The log refuses all but one in any case: this saves the others a failing request. So a writer that
        is suspended is not waited for.
        """
        with self._lock("writing", _COURTESY):
            yield

    @contextmanager
    def _lock(self, name: str, most: float | None) -> Iterator[bool]:
        with explained(self._folder):
            private_folder(self._folder)
            handle = os.open(self._folder / f"{self._name}.{name}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.utime(handle)  # the copy is in use
            if most is None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield most is None or _try_lock(handle, most)
        finally:
            os.close(handle)

    def size(self) -> int:
        """Its size on this disk in bytes."""
        return self._opened.shard.size() if self._opened is not None else 0

    def close(self) -> None:
        """Closes the environment."""
        opened, self._opened = self._opened, None
        if opened is not None:
            _release(opened)


def _try_lock(handle: int, most: float) -> bool:
    end = time.monotonic() + most
    pause = 0.0005
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _acquire(path: Path) -> _Opened:
    place = (os.getpid(), path)
    with _opening:
        found = _opened.get(place)
        if found is not None:
            found.handles += 1
            return found
        with explained(path):
            os.utime(path.parent)
        shard = LmdbShard(path, sync=False, map_size=_MAP, checked=True)
        found = _opened[place] = _Opened(shard)
        return found


def _release(opened: _Opened) -> None:
    with _opening:
        opened.handles -= 1
        if not opened.handles:
            opened.shard.close()
            _opened.pop((os.getpid(), opened.shard.path), None)
