"""The embedded store: LMDB, a folder with one environment for the journal and one for each shard.

LMDB maps its file into memory and lets many processes read while one writes, so every Python worker on
the host reaches a row at the cost of a memory access. Each shard is an environment of its own because an
environment has one writer at a time: slots that write different shards do not wait for each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import lmdb

from millwheel.errors import StoreError
from millwheel.store.base import Guard, Range, Shard, Store

_FIRST_MAP = 256 << 20  # address space, not disk; it doubles when it is full
_READERS = 1024  # slots for reading processes; a killed one's slot is taken back at the next open
_SHARDS_KEY = b"shards"
_LOCK_FILE = "driver.lock"
_COMPACTED = "compacted"


class _Snapshot:
    """A read transaction."""

    __slots__ = ("_txn",)

    def __init__(self, txn: Any) -> None:
        self._txn = txn  # opened without buffers: it gives bytes, whatever its annotations allow for

    def get(self, key: bytes) -> bytes | None:
        return cast(bytes | None, self._txn.get(key))

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._txn.get, keys))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor() as cursor:
            if not cursor.set_range(start):
                return
            for key, value in cursor:
                if key >= stop:
                    return
                yield key, value

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """A read is a memory access here."""


class LmdbShard:
    """One environment. The lock keeps the map from being moved under a reader of this process."""

    def __init__(self, path: Path, *, sync: bool, map_size: int) -> None:
        self._path = path
        self._lock = threading.RLock()
        with _explained(path):
            path.mkdir(parents=True, exist_ok=True)
            self._env = lmdb.open(
                os.fspath(path),
                map_size=map_size,
                max_readers=_READERS,
                sync=sync,
                readahead=False,  # rows are read at random places
            )
            self._env.reader_check()

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        with self._lock:
            with _explained(self._path):
                txn = self._begin(write=False)
            try:
                yield _Snapshot(txn)
            finally:
                txn.abort()

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        with self._lock, _explained(self._path):
            while True:
                txn = self._begin(write=True)
                try:
                    if guard is not None:
                        guard(txn.get)
                    for key in deletes:
                        txn.delete(key)
                    with txn.cursor() as cursor:
                        cursor.putmulti(puts)
                    txn.commit()
                    return
                except lmdb.MapFullError:
                    txn.abort()
                    self._grow()
                except BaseException:
                    txn.abort()
                    raise

    def _begin(self, *, write: bool) -> Any:
        while True:
            try:
                return self._env.begin(write=write)
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)  # another process grew the map: take its size

    def _grow(self) -> None:
        self._env.reader_check()
        self._env.set_mapsize(2 * self._env.info()["map_size"])

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def copy_to(self, folder: Path) -> None:
        """Copies what is live, and nothing else, to a folder."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._env.copy(os.fspath(folder), compact=True)
        with open(folder / "data.mdb", "rb") as file:
            os.fsync(file.fileno())

    def size(self) -> int:
        """The bytes of the file that are in use on disk."""
        return _size(self._path)

    def close(self) -> None:
        self._env.close()


class LmdbStore(Store):
    """The store in a folder. Give ``sync=False`` only where losing it to a power cut does not matter."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shards: int = 1,
        sync: bool = True,
        map_size: int = _FIRST_MAP,
        identity: str | None = None,
    ) -> None:
        """Opens a store, or makes it; with ``identity`` it is that very one, and never made."""
        self._path = Path(path).absolute()
        self._lock_file: Any = None
        self._open: list[LmdbShard] = []
        if identity is not None and not (self._path / "journal").is_dir():
            raise StoreError(_elsewhere(self._path, "there is none"))
        try:
            journal = self._shard("journal", sync, map_size)
            count, found = _agree_on_shards(journal, shards)
            if identity not in (None, found):
                raise StoreError(_elsewhere(self._path, "there is another one"))
            identity = found
            self.address = f"lmdb://{quote(str(self._path))}?sync={int(sync)}&id={identity}"
            self.journal: Shard = journal
            self.shards: Sequence[Shard] = [
                self._shard(f"shard-{number:02d}", sync, map_size) for number in range(count)
            ]
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def _shard(self, name: str, sync: bool, map_size: int) -> LmdbShard:
        shard = LmdbShard(self._path / name, sync=sync, map_size=map_size)
        self._open.append(shard)
        return shard

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        # A lock cannot be taken from a process that hangs: it keeps its file, and ours takes the name.
        name = self._path / (f"{_LOCK_FILE}.{os.getpid()}" if takeover else _LOCK_FILE)
        with _explained(self._path):
            file = open(name, "a+")  # noqa: SIM115 - it stays open with the store
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise StoreError(
                f"the store {self._path} is in use by {_holder(self._path)}: one driver runs a pipeline "
                "at a time; stop that one first, give this one a store of its own, or, if that one hangs, "
                "take over from it (takeover=True, millwheel run --take-over)"
            ) from None
        file.truncate(0)
        file.write(owner)
        file.flush()
        if takeover:
            os.replace(name, self._path / _LOCK_FILE)
        self._lock_file = file

    def in_use(self) -> bool | None:
        lock = self._path / _LOCK_FILE
        if not lock.exists():
            return False
        try:
            inode = os.stat(lock).st_ino
            with open("/proc/locks") as locks:
                held = [line.split() for line in locks]
        except OSError:
            return None
        return any(
            "FLOCK" in fields and any(part.endswith(f":{inode}") for part in fields) for fields in held
        )

    def compact(self) -> tuple[int, int]:
        """Writes every environment anew, without its free pages; the bytes before and after.

        Only for who holds the lock: an environment that is open elsewhere would go on with the old file.
        """
        before = self.size()
        folders = [shard.path for shard in self._open]
        for shard in self._open:
            with _explained(shard.path):
                shard.copy_to(shard.path / _COMPACTED)
            shard.close()
        self._open.clear()
        for folder in folders:
            with _explained(folder):
                os.replace(folder / _COMPACTED / "data.mdb", folder / "data.mdb")
                shutil.rmtree(folder / _COMPACTED)
        return before, sum(_size(folder) for folder in folders)

    def close(self) -> None:
        for shard in self._open:
            shard.close()
        self._open.clear()
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def size(self) -> int:
        return sum(shard.size() for shard in self._open)


def _elsewhere(path: Path, what: str) -> str:
    return (
        f"the store of this pipeline is in the folder {path}, and on the host {socket.gethostname()} {what}: "
        "LMDB serves the processes of one machine. On a cluster of several machines the store is one that "
        "all of them reach, such as postgresql://user@host/database"
    )


def _size(folder: Path) -> int:
    return os.stat(folder / "data.mdb").st_blocks * 512


def _agree_on_shards(journal: LmdbShard, shards: int) -> tuple[int, str]:
    """The number of shards is fixed when the store is made: rows do not move between environments.

    So is its identity, which tells it from another one that stood at the same path before.
    """
    with journal.snapshot() as snapshot:
        found = snapshot.get(_SHARDS_KEY)
    if found is None:
        found = f"{shards} {uuid.uuid4().hex}".encode()
        journal.write([(_SHARDS_KEY, found)])
    count, identity = found.decode().split()
    return int(count), identity


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns what LMDB and the file system say into a `StoreError` that says what to do."""
    try:
        yield
    except lmdb.Error as error:
        raise StoreError(_advice(path, str(error))) from error
    except OSError as error:
        raise StoreError(_advice(path, str(error), error.errno)) from error


def _holder(path: Path) -> str:
    """Who wrote its name into the lock."""
    try:
        return (path / _LOCK_FILE).read_text().strip() or "another driver"
    except OSError:
        return "another driver"


def _advice(path: Path, text: str, code: int | None = None) -> str:
    if code == errno.ENOSPC or "No space left" in text:
        return (
            f"the store {path} has no room to write ({text}): the disk is full. Nothing of this write is "
            "there; make room and run again"
        )
    if code == errno.EIO or "Input/output error" in text:
        # LMDB says this also of a write that the file system cut short for want of room.
        return (
            f"the store {path} cannot be written ({text}): the disk is full, or it is failing. Nothing of "
            "this write is there; make room, or look at the disk, and run again"
        )
    if "already open in this process" in text:
        return (
            f"the store {path.parent} is in use by {_holder(path.parent)}: one driver runs a pipeline at a "
            "time; stop that one first, or give this one a store of its own"
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS) or "Permission denied" in text:
        return f"the store {path} cannot be written ({text}): choose a folder that this user may write"
    return f"the store {path} cannot be used ({text})"
