"""One LMDB environment: an ordered map of bytes in a folder, for one machine.

A handle follows its file: if `compact` has replaced it, the next transaction uses the new one.
Each value of a store has a checksum, and a hidden entry counts the writes: a file with fewer of them than
it had is an older copy.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from millwheel.disk import sync_folder
from millwheel.errors import StoreError
from millwheel.store.base import Guard
from millwheel.store.lmdb.audit import audit
from millwheel.store.lmdb.checksum import seal_all, sealed
from millwheel.store.lmdb.known_pages import Interrupted, KnownPages
from millwheel.store.lmdb.lmdb_errors import DATA, explained
from millwheel.store.lmdb.lmdb_snapshot import WRITES, CheckedSnapshot, LmdbSnapshot
from millwheel.store.lmdb.manifest import private_folder
from millwheel.store.lmdb.pages import Damaged, Meta, head_of, read_head, renumber
from millwheel.store.lmdb.seal import Mark, digest_of

LOCK = "lock.mdb"
_READERS = 1024  # slots for reading processes; a killed one's slot is freed at the next open
_COMPACTED = "compacted"


class LmdbShard:
    """One environment; a lock keeps its map in place under this process's readers.

    With ``readonly`` it is only read: no file is made, and none but LMDB's table of readers is written. With
    ``new`` it is made if it does not exist.
    ``still`` is called before a replaced file is opened, and raises to refuse it; without it a handle stays
    with the file that it has.

    With ``checked`` values have checksums, and writes are counted; ``witness`` returns what is stored with
    the count.
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
        self._known: KnownPages | None = None
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
                # Without the table of readers it has not been opened since it was restored from a backup.
                lock=not self._readonly or (self._path / LOCK).exists(),
                readahead=False,  # rows are read at random
            )
            self._inode = _inode(self._data)
            if before in (None, self._inode):
                break
            self._env.close()
        self._env.reader_check()
        if self._checked and self._is_short():
            self.verify(None)  # most often the file was truncated, which would end LMDB with SIGBUS

    @contextmanager
    def snapshot(self) -> Iterator[LmdbSnapshot]:
        with self._lock:
            with explained(self._path):
                txn = self._begin(write=False)
            self._reading += 1
            try:
                yield CheckedSnapshot(txn, self._path) if self._checked else LmdbSnapshot(txn)
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
                    snapshot = CheckedSnapshot(txn, self._path) if self._checked else LmdbSnapshot(txn)
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
        """A transaction on the current file of the folder."""
        while True:
            try:
                txn = self._env.begin(write=write)
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)  # another process grew the map: use its size
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
        """The number of writes, and the witness of the last one."""
        with self.snapshot() as snapshot:
            found = snapshot.get(WRITES)
        return _count(found), found[8:] if found is not None else b""

    def _is_short(self) -> bool:
        """Whether the file ends before its last page, by the meta page."""
        newest = read_head(self._path / DATA).newest
        return os.stat(self._data).st_size < (newest.last_page + 1) * newest.page_size

    def verify(self, mark: Mark | None) -> None:
        """Raises `Damaged` if the file is not as at ``mark``, or was never written so."""
        with self._lock, self._pinned() as (file, meta):
            path = self._path / DATA
            if mark is not None and meta.transaction < mark.transaction:
                raise Damaged(
                    path,
                    f"transaction {meta.transaction} is the last, and it was closed at {mark.transaction}: "
                    "this is an older copy",
                )
            if (
                mark is None
                or mark.transaction != meta.transaction
                or mark.digest != digest_of(file)  # which reads the file: last
            ):
                audit(path, file, meta, self._known)

    def verify_ahead(self, interrupted: Callable[[], bool]) -> int:
        """Audits the file, so that `verify` can pass over unchanged pages.

        Returns the number of pages whose entries were read. Others may write meanwhile, other threads too: a
        standby's claim does not wait for an audit.
        """
        if self._known is None:
            self._known = KnownPages()
        before = self._known.added
        self._known.interrupted = interrupted
        try:
            with self._pinned() as (file, meta):
                audit(self._path / DATA, file, meta, self._known)
        finally:
            self._known.interrupted = None
        return self._known.added - before

    def mark(self) -> Mark:
        """The file's current mark; wrong if another process writes meanwhile."""
        with self._lock, self._pinned() as (file, meta):
            return Mark(meta.transaction, digest_of(file))

    @contextmanager
    def _pinned(self) -> Iterator[tuple[int, Meta]]:
        """The file, and a state of it whose pages are not reused meanwhile.

        The file is read, not the map: other threads may use that. If one of them replaces it, the state is
        not kept any more, and damage is no damage: then it raises `Interrupted`.
        """
        while True:
            with explained(self._path):
                with self._lock:
                    txn = self._begin(write=False)
                    number = txn.id()
                try:
                    with open(self._data, "rb") as file:
                        head = head_of(self._path / DATA, file.fileno())
                        for meta in head.metas:
                            if meta.transaction == number:
                                yield file.fileno(), meta
                                return
                except Damaged:
                    with self._lock:
                        if _is_closed(txn):
                            raise Interrupted from None
                    raise
                finally:
                    with self._lock:
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
        """Replaces the file by a copy without free pages.

        No write can happen between the copy and the exchange, as a write transaction is open. The copy keeps
        the number of the last transaction: a table of readers in use has that number too, and LMDB chooses a
        file's root by it. A process that has the old file open keeps it until its next transaction.
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
        """The bytes of the file on disk."""
        with explained(self._path):
            return os.stat(self._data).st_blocks * 512

    def close(self) -> None:
        self._env.close()


def _count(found: bytes | None) -> int:
    return int.from_bytes(found[:8], "big") if found is not None else 0


def _is_closed(txn: Any) -> bool:
    """Whether a transaction has ended because its map was replaced."""
    try:
        txn.id()
    except lmdb.Error:
        return True
    return False


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
