"""One environment of LMDB: an ordered map of bytes in a folder, for all processes of a machine.

A handle follows its file: where `compact` has put another one in its place, the next transaction is on that.
Of a store each value has a checksum behind it, and one entry, which nobody else sees, counts
the writes: a file that has fewer of them than it had is an older copy.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import lmdb

from millwheel.errors import StoreError
from millwheel.store.base import Guard, Range
from millwheel.store.lmdb.audit import audit
from millwheel.store.lmdb.checksum import digest, is_whole, seal_all, sealed
from millwheel.store.lmdb.manifest import private_folder, sync_folder
from millwheel.store.lmdb.pages import Damaged, Meta, head_of, read_head, renumber
from millwheel.store.lmdb.seal import Mark, digest_of

DATA = "data.mdb"
LOCK = "lock.mdb"
_READERS = 1024  # slots for reading processes; a killed one's slot is taken back at the next open
_COMPACTED = "compacted"
_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError)
WRITES = b"\x00writes"
"""The entry that counts the writes; before every other."""
DRIVER_LOCK = "driver.lock"
"""The file beside the environments that the driver of the store holds."""


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


class _CheckedSnapshot(_Snapshot):
    """A read transaction of an environment with checksums."""

    __slots__ = ("_path",)

    def __init__(self, txn: Any, path: Path) -> None:
        super().__init__(txn)
        self._path = path

    def get(self, key: bytes) -> bytes | None:
        stored = self._txn.get(key)
        return stored if stored is None else self._value(key, stored)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = []
        get = self._txn.get
        for key in keys:
            stored = get(key)
            if stored is not None:
                value = stored[:-4]
                if not stored.endswith(digest(key + value)[:4]):
                    raise self._damaged(key)
                stored = value
            found.append(stored)
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in super().scan(start, stop):
            value = stored[:-4]
            if not stored.endswith(digest(key + value)[:4]):
                raise self._damaged(key)
            if key != WRITES:
                yield key, value

    def _value(self, key: bytes, stored: bytes) -> bytes:
        if not is_whole(key, stored):
            raise self._damaged(key)
        return stored[:-4]

    def _damaged(self, key: bytes) -> Damaged:
        return Damaged(self._path / DATA, f"the entry {key[:40].hex()} has a wrong checksum")


class LmdbShard:
    """One environment. The lock keeps the map from being moved under a reader of this process.

    With ``readonly`` it is only read: no file is made, and none but LMDB's table of readers is written. With
    ``new`` it is made where it is not there.
    ``still`` is called before another file is opened in the place of the first one, and raises to refuse it;
    without it a handle stays with the file that it has.

    With ``checked`` values have checksums, and writes are counted; ``witness`` gives what is noted beside the
    count with each of them.
    """

    def __init__(
        self,
        path: Path,
        *,
        sync: bool,
        map_size: int,
        readonly: bool = False,
        new: bool = True,
        still: Callable[[], None] | None = None,
        checked: bool = False,
        witness: Callable[[], bytes] | None = None,
    ) -> None:
        self._path = path
        self._data = os.fspath(path / DATA)
        self._sync = sync
        self._map_size = map_size
        self._readonly = readonly
        self._new = new and not readonly
        self._still = still
        self._checked = checked
        self._witness = witness
        self._lock = threading.RLock()
        self._reading = 0
        with explained(path):
            if self._new:
                private_folder(path)
            self._open()

    def _open(self) -> None:
        while True:
            before = _inode(self._data)
            if before is None and not self._new:
                raise Damaged(self._path / DATA, "nothing is left: the file is not there")
            if not self._new:
                read_head(self._path / DATA)
            self._env = lmdb.open(
                os.fspath(self._path),
                map_size=self._map_size,
                max_readers=_READERS,
                sync=self._sync,
                readonly=self._readonly,
                create=self._new,
                mode=0o600,
                # Without the table of readers nobody has opened it since it came here, from a backup.
                lock=not self._readonly or (self._path / LOCK).exists(),
                readahead=False,  # rows are read at random places
            )
            self._inode = _inode(self._data)
            if before in (None, self._inode):
                break
            self._env.close()
        self._env.reader_check()
        if self._checked and self._is_short():
            self.verify(None)  # as a rule the end of the file was cut off: LMDB would die of SIGBUS

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        with self._lock:
            with explained(self._path):
                txn = self._begin(write=False)
            self._reading += 1
            try:
                yield _CheckedSnapshot(txn, self._path) if self._checked else _Snapshot(txn)
            except lmdb.Error as error:
                raise Damaged(self._path / DATA, f"LMDB cannot read a page ({error})") from error
            finally:
                self._reading -= 1
                txn.abort()

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        with self._lock, explained(self._path):
            if self._readonly:
                raise StoreError(f"the store {self._path.parent} was opened to be read only")
            noted = self._witness() if self._witness is not None else b""
            entries = seal_all(puts) if self._checked else puts
            while True:
                txn = self._begin(write=True)
                try:
                    snapshot = _CheckedSnapshot(txn, self._path) if self._checked else _Snapshot(txn)
                    if guard is not None:
                        guard(snapshot.get)
                    for key in deletes:
                        txn.delete(key)
                    with txn.cursor() as cursor:
                        cursor.putmulti(entries)
                    if self._checked:
                        count = _count(snapshot.get(WRITES)) + 1
                        txn.put(WRITES, sealed(WRITES, count.to_bytes(8, "big") + noted))
                    txn.commit()
                    return
                except lmdb.MapFullError:
                    txn.abort()
                    self._grow()
                except BaseException:
                    txn.abort()
                    raise

    def _begin(self, *, write: bool) -> Any:
        """A transaction on the file that stands in the folder now."""
        while True:
            try:
                txn = self._env.begin(write=write)
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)  # another process grew the map: take its size
                continue
            if self._still is None or self._reading or _inode(self._data) == self._inode:
                return txn
            txn.abort()
            self._still()
            self._env.close()
            self._open()

    def _grow(self) -> None:
        self._env.reader_check()
        self._env.set_mapsize(2 * self._env.info()["map_size"])

    def writes(self) -> tuple[int, bytes]:
        """How often it was written, and what was noted with the last write."""
        with self.snapshot() as snapshot:
            found = snapshot.get(WRITES)
        return _count(found), found[8:] if found is not None else b""

    def _is_short(self) -> bool:
        """Whether the file ends before its last page, as far as the meta page knows."""
        newest = read_head(self._path / DATA).newest
        return os.stat(self._data).st_size < (newest.last_page + 1) * newest.page_size

    def verify(self, mark: Mark | None) -> None:
        """Raises `Damaged` where the file is not what was written: at ``mark``, or ever."""
        with self._pinned() as (file, meta):
            path = self._path / DATA
            if mark is not None and meta.transaction < mark.transaction:
                raise Damaged(
                    path,
                    f"transaction {meta.transaction} is the last, and it was closed at {mark.transaction}: "
                    "this is an older copy",
                )
            if mark is None or mark != Mark(meta.transaction, digest_of(file)):
                audit(path, file, meta)

    def mark(self) -> Mark:
        """What the file is now; wrong where somebody writes meanwhile."""
        with self._pinned() as (file, meta):
            return Mark(meta.transaction, digest_of(file))

    @contextmanager
    def _pinned(self) -> Iterator[tuple[int, Meta]]:
        """The file, and a state of it whose pages are not used again meanwhile, whoever writes."""
        while True:
            with self._lock, explained(self._path):
                txn = self._begin(write=False)
                try:
                    with open(self._data, "rb") as file:
                        head = head_of(self._path / DATA, file.fileno())
                        for meta in head.metas:
                            if meta.transaction == txn.id():
                                yield file.fileno(), meta
                                return
                finally:
                    txn.abort()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def sync(self) -> None:
        """Makes a new file durable: its pages and its name."""
        with explained(self._path):
            with open(self._data, "rb") as file:
                os.fsync(file.fileno())
            sync_folder(self._path)

    def compact(self) -> None:
        """Puts a copy without free pages in the place of the file.

        No write can come between the copy and the exchange, as a write transaction is open. The copy goes on
        with the number of the last transaction: a table of readers that is in use has that number too, and
        LMDB chooses a file's root by it. Who has the old file open keeps it until its next transaction.
        """
        folder = self._path / _COMPACTED
        with self._lock, explained(self._path):
            shutil.rmtree(folder, ignore_errors=True)  # of a call that was interrupted
            private_folder(folder)
            txn = self._begin(write=True)
            try:
                self._env.copy(os.fspath(folder), compact=True)
                os.chmod(folder / DATA, 0o600)
                renumber(folder / DATA, txn.id() - 1)
                os.replace(folder / DATA, self._data)
                sync_folder(self._path)
            finally:
                txn.abort()
            shutil.rmtree(folder)

    def size(self) -> int:
        """The bytes of the file that are in use on disk."""
        return os.stat(self._data).st_blocks * 512

    def close(self) -> None:
        self._env.close()


def _count(found: bytes | None) -> int:
    return int.from_bytes(found[:8], "big") if found is not None else 0


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what LMDB and the file system say into a `StoreError` that says what to do."""
    try:
        yield
    except _DAMAGE as error:
        raise Damaged(path / DATA, f"LMDB cannot read a page ({error})") from error
    except lmdb.Error as error:
        raise StoreError(_advice(path, str(error))) from error
    except OSError as error:
        raise StoreError(_advice(path, str(error), error.errno)) from error


def holder(path: Path) -> str:
    """Who wrote its name into the lock."""
    try:
        return (path / DRIVER_LOCK).read_text().strip() or "another driver"
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
            f"the store {path.parent} is in use by {holder(path.parent)}: one driver runs a pipeline at a "
            "time; stop that one first, or give this one a store of its own"
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS) or "Permission denied" in text:
        return f"the store {path} cannot be written ({text}): choose a folder that this user may write"
    return f"the store {path} cannot be used ({text})"
