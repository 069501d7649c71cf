"""Working copies: what a log adds up to, on the disk of this host, for all processes of it.

A copy is an environment of LMDB, with the embedded store's own code. An entry that nobody else sees has the
number up to which it is current, written in the transaction that applies an object of the log. A copy may be
lost at any time: it is made again from the newest snapshot and the log. So it is never synced; one that was
there when the machine went down is not used again.
"""

from __future__ import annotations

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

from millwheel.store.base import Get, Shard, Snapshot
from millwheel.store.lmdb.environment import DATA, LmdbShard, explained
from millwheel.store.lmdb.manifest import private_folder
from millwheel.store.objects.log import Puts

NUMBER = b"\x00log"
"""The entry that says up to which number of the log a copy is current."""
COPIES = "MILLWHEEL_COPIES"
"""The variable of the environment that names the folder of working copies."""
_MAP = 256 << 20  # address space, not disk; it doubles when it is full
_COURTESY = 10.0  # seconds to wait for other writers of this host; waiting on would not make it safer
_OURS = re.compile(r"[0-9a-z]+-[0-9a-f]{32}")  # a start of the machine, and the identity of a store
_UNUSED = 7 * 24 * 3600  # seconds after which a copy that nobody opens is removed


@dataclass
class _Opened:
    """An environment that this process has open, and how many handles it has."""

    shard: LmdbShard
    handles: int = 1


_opened: dict[tuple[int, Path], _Opened] = {}
"""By process and folder: LMDB opens a folder once in a process, and not at all across a fork."""
_opening = threading.Lock()


class Moved(Exception):
    """A copy is not at the number that a change is for."""


def number_of(get: Get) -> int | None:
    """Up to which number a copy is current; None: it has not been filled."""
    found = get(NUMBER)
    return None if found is None else int.from_bytes(found, "big")


def number_entry(number: int) -> tuple[bytes, bytes]:
    """The entry that says that a copy is current up to a number."""
    return NUMBER, number.to_bytes(8, "big")


def copies_folder() -> Path:
    """Where this host has its copies: MILLWHEEL_COPIES, or a folder for temporary files."""
    given = os.environ.get(COPIES)
    if given:
        return Path(given)
    return Path(tempfile.gettempdir()) / f"millwheel-copies-{os.getuid()}"


def remove_unused(folder: Path) -> None:
    """Removes the copies that nobody has used for a week, or since the machine was started.

    Nothing else is: the folder is one that a user may have named.
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
    """A name for the time since this machine was started: files that were not synced are sound in it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return "boot"


class CopySnapshot:
    """A reading of a copy without the entry that is not the user's."""

    __slots__ = ("_snapshot", "get", "get_each", "prefetch")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.get = snapshot.get
        self.get_each = snapshot.get_each
        self.prefetch = snapshot.prefetch

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` to before ``stop``, in order."""
        found = self._snapshot.scan(start, stop)
        if start > NUMBER:
            return found
        return (entry for entry in found if entry[0] != NUMBER)


class WorkingCopy:
    """A copy of one log, shared by all processes of this host.

    A file beside it names the folder that is the copy, once that is filled. To fill it anew is to fill
    another folder and name that: whoever has the former one open goes on with it, which is as good.
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
        """Up to which number it is current; None: there is no copy yet."""
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

    def apply(self, number: int, puts: Puts, deletes: Sequence[bytes]) -> None:
        """Applies the write of a number; one that another process has applied is left as it is."""

        def guard(get: Get) -> None:
            if number_of(get) != number - 1:
                raise Moved

        with suppress(Moved):
            self.shard.write([*puts, number_entry(number)], deletes, guard)

    def replace(self, fill: Callable[[Shard], None]) -> None:
        """Makes the copy anew; where another process of this host has done so meanwhile, takes that one."""
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
        """Gives up a copy that is damaged: nobody opens it any more, and its files go."""
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
    def courtesy(self) -> Iterator[None]:
        """Lets one writer of this host go first.

        The log refuses all but one in any case: this saves the others a request in vain. So a writer that
        stands still is not waited for.
        """
        with self._lock("writing", _COURTESY):
            yield

    @contextmanager
    def _lock(self, name: str, most: float | None) -> Iterator[None]:
        with explained(self._folder):
            private_folder(self._folder)
            handle = os.open(self._folder / f"{self._name}.{name}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.utime(handle)  # the copy is in use
            if most is None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            else:
                _try_lock(handle, most)
            yield
        finally:
            os.close(handle)

    def size(self) -> int:
        """The bytes on this disk."""
        return self._opened.shard.size() if self._opened is not None else 0

    def close(self) -> None:
        """Lets go of the environment."""
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
