"""The embedded store: a folder of LMDB environments, for journal and shards.

LMDB maps its file into memory and lets many processes read while one writes, so every Python worker on
the host reads a row at the cost of a memory access. Each shard is an environment of its own because an
environment has one writer at a time: slots that write different shards do not wait for each other.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millwheel.errors import StoreError
from millwheel.model.keys import TABLETS
from millwheel.store.base import Shard, Store
from millwheel.store.formats import check_tablets
from millwheel.store.lmdb.environment import LmdbShard
from millwheel.store.lmdb.known_pages import Interrupted
from millwheel.store.lmdb.lmdb_errors import DATA, DRIVER_LOCK, explained, holder
from millwheel.store.lmdb.manifest import Identity, decide_identity, private_folder, read_identity
from millwheel.store.lmdb.older_copies import refuse_older_copies
from millwheel.store.lmdb.seal import read_seal, remove_seal, write_seal

_FIRST_MAP = 256 << 20  # address space, not disk; it doubles when it is full
_VERIFIED_TO_LOOK = (
    1 << 30
)  # bytes: up to a second; larger stores are verified by `store check` and the next run
_VERIFIED_AHEAD = 8 << 30
"""Bytes: while an audit reads a state of the file, the leader cannot reuse the pages that it frees."""
_OLD_IDENTITY = b"shards"  # of a store of format 1: an entry of its journal


class LmdbStore(Store):
    """The store in a folder; ``sync=False`` risks its loss in a power failure."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shards: int = 1,
        tablets: int = TABLETS,
        sync: bool = True,
        map_size: int = _FIRST_MAP,
        identity: str | None = None,
        readonly: bool = False,
        existing: bool = False,
    ) -> None:
        """Opens a store, or makes it.

        With ``identity`` it must be that store. With this, ``existing`` or ``readonly`` it is never made;
        with ``readonly`` nothing is ever written.
        """
        self._path = Path(path).absolute()
        self.lock_file: Any = None
        self._open: list[LmdbShard] = []
        self._sync = sync
        self._map_size = map_size
        self._readonly = readonly
        try:
            with explained(self._path):
                found = read_identity(self._path)
                if found is None:
                    found = self._make(shards, tablets, identity, existing=existing or readonly)
            if identity not in (None, found.id):
                raise StoreError(_elsewhere(self._path, "there is another one"))
            self._identity = found
            self.tablets = found.tablets
            self.address = f"lmdb://{quote(str(self._path))}?sync={int(sync)}&id={found.id}"
            environments = [self._environment(_name(number)) for number in range(found.shards)]
            self.shards: Sequence[Shard] = environments
            self.journal: Shard = self._environment("journal", partial(_witness, environments))
            if (readonly or existing) and self.size() < _VERIFIED_TO_LOOK and not self.in_use():
                self.verify()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def _make(self, shards: int, tablets: int, identity: str | None, *, existing: bool) -> Identity:
        """Makes a new store: the environments, then the manifest that completes it.

        Another process may make it too, with another number of shards: then the first one's is the store's,
        and the other's additional environments stay empty.
        """
        there = (self._path / "journal" / DATA).exists()
        if there and self._is_old():
            raise StoreError(
                f"the store {self._path} has format 1, without checksums: an earlier version of millwheel "
                "made it. Run it with that version, or start with a new store"
            )
        if identity is not None:
            raise StoreError(_elsewhere(self._path, "there is none"))
        if existing and there:
            raise StoreError(
                f"the store {self._path} is not finished: a pipeline that starts is making it now, or was "
                "interrupted doing so. Try again in a moment; if nothing makes it, run the pipeline"
            )
        if existing:
            raise StoreError(f"there is no store at {self._path}")
        check_tablets(shards, tablets)
        private_folder(self._path)
        for name in ("journal", *map(_name, range(shards))):
            made = LmdbShard(self._path / name, sync=self._sync, map_size=self._map_size)
            made.sync()
            made.close()
        return decide_identity(self._path, shards, tablets)

    def _is_old(self) -> bool:
        try:
            journal = LmdbShard(
                self._path / "journal", sync=self._sync, map_size=self._map_size, readonly=True
            )
        except StoreError:
            return False  # it is being made at this moment
        try:
            with journal.snapshot() as snapshot:
                return snapshot.get(_OLD_IDENTITY) is not None
        finally:
            journal.close()

    def _environment(self, name: str, witness: Callable[[], bytes] | None = None) -> LmdbShard:
        shard = LmdbShard(
            self._path / name,
            sync=self._sync,
            map_size=self._map_size,
            readonly=self._readonly,
            new=False,
            still=partial(_is_still, self._path, self._identity),
            checked=True,
            witness=witness,
        )
        self._open.append(shard)
        return shard

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        # A lock cannot be taken from a process that hangs: it keeps its file, and ours gets another name.
        name = self._path / (f"{DRIVER_LOCK}.{os.getpid()}" if takeover else DRIVER_LOCK)
        with explained(self._path):
            handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
            file = open(handle, "r+")  # noqa: SIM115 - it stays open with the store
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise StoreError(
                f"the store {self._path} is in use by {holder(self._path)}: one driver runs a pipeline "
                "at a time; stop that one first, give this one a store of its own, or, if that one hangs, "
                "take over from it (takeover=True, millwheel run --take-over)"
            ) from None
        file.truncate(0)
        file.write(owner)
        file.flush()
        if takeover:
            os.replace(name, self._path / DRIVER_LOCK)
        self.lock_file = file
        try:
            self.verify()
        except BaseException:
            self.lock_file.close()
            self.lock_file = None
            raise

    def verify(self) -> None:
        """Raises a `StoreError` if a file is damaged, or older than the others."""
        seal = read_seal(self._path)
        for shard in self._open:
            shard.verify(seal.get(shard.path.name))
        *shards, journal = self._open
        refuse_older_copies(self._path, journal, shards)

    def verify_ahead(self, interrupted: Callable[[], bool]) -> int:
        if self.size() > _VERIFIED_AHEAD:
            return 0
        try:
            return sum(shard.verify_ahead(interrupted) for shard in self._open)
        except Interrupted:
            return 0

    def _write_seal(self) -> None:
        """Records the state of the files, for the next owner of the store.

        A leftover task of a driver may write meanwhile, or later: then the seal is invalid.
        """
        if self.lock_file is None or self._readonly or not self._sync:
            return
        with suppress(StoreError, OSError):
            write_seal(self._path, {shard.path.name: shard.mark() for shard in self._open})

    def in_use(self) -> bool | None:
        lock = self._path / DRIVER_LOCK
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
        """Rewrites every environment without its free pages; the bytes before and after.

        The lock must be held. Others may read meanwhile: see `LmdbShard.compact`.
        """
        before = self.size()
        with explained(self._path):
            remove_seal(self._path)
        for shard in self._open:
            shard.compact()
        return before, self.size()

    def close(self) -> None:
        self._write_seal()
        for shard in self._open:
            shard.close()
        self._open.clear()
        if self.lock_file is not None:
            self.lock_file.close()
            self.lock_file = None

    def size(self) -> int:
        return sum(shard.size() for shard in self._open)


def _name(number: int) -> str:
    return f"shard-{number:02d}"


def _witness(shards: Sequence[LmdbShard]) -> bytes:
    """The number of writes of each shard, stored with the journal's."""
    return b"".join(shard.writes()[0].to_bytes(8, "big") for shard in shards)


def _is_still(path: Path, identity: Identity) -> None:
    """Raises if another store is in the folder now."""
    if read_identity(path) != identity:
        raise StoreError(_elsewhere(path, "it was removed or replaced"))


def _elsewhere(path: Path, what: str) -> str:
    return (
        f"the store of this pipeline is in the folder {path}, and on the host {socket.gethostname()} {what}: "
        "LMDB serves the processes of one machine. On a cluster of several machines the store is one that "
        "all of them reach, such as postgresql://user@host/database"
    )
