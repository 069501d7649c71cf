"""The side tables in the driver: read, compared, stored, named in plans.

1. *Read* the table, at the start and whenever ``refresh`` has passed. If that fails, the present version
   stays, with a warning; without one the run does not start.
2. *Compare* with the present version: a table that has not changed gives no new version.
3. *Write* the new version to the store, part by part, then the entry that makes it the present one and
   removes those before the last. *Crash before the entry*: the parts are unused, and the next version, of the
   same number, replaces them.
4. *Plan*: the next epoch names it. An epoch that was begun names the one it was begun with, and one that
   continues another keeps that one's.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millwheel.errors import InputError
from millwheel.master.journal import Journal
from millwheel.model.codec import pack, unpack
from millwheel.model.side_table import Contents, HeldTable
from millwheel.store.keyspace import JournalKey, after
from millwheel.worker.side_tables import entries_of, table_prefix, version_prefix

logger = logging.getLogger("millwheel")

_INDEX = JournalKey.SIDE_TABLES
LARGEST = 1 << 30  # bytes: each worker holds the table in memory, and the store two versions of it
_AT_ONCE = 16 << 20  # bytes of one write


@dataclass
class LookupStatus:
    """How a side table stands."""

    version: int
    rows: int
    read_at: int
    """When it was last read, or found unchanged: wall time."""
    error: str = ""
    """Why it could not be refreshed, since then."""


@dataclass
class _Reading:
    """What a reading of a table has found: a token alone where it has not changed."""

    token: Any = None
    contents: Contents | None = None
    error: Exception | None = None


class Lookups:
    """Invariant: a table's version is complete in the store before a plan names it."""

    def __init__(self, tables: Mapping[str, HeldTable], journal: Journal) -> None:
        self._tables = tables
        self._journal = journal
        self._tokens: dict[str, Any] = {}
        self._tried: dict[str, int] = {}
        self._reading: dict[str, tuple[threading.Thread, _Reading]] = {}
        self.background = False
        """Whether tables are refreshed in the background; a test reads them in between."""
        found = journal.read(lambda snapshot: snapshot.get(_INDEX)) if tables else None
        self._index: dict[str, list[Any]] = unpack(found) if found is not None else {}
        """By table: version, digest, rows, when it was read."""
        self._errors: dict[str, str] = {}

    def versions(self) -> dict[str, int]:
        """By table: the version that the next epoch's records see."""
        return {name: self._index[name][0] for name in self._tables}

    def status(self) -> dict[str, LookupStatus]:
        """By table: how it stands."""
        return {
            name: LookupStatus(found[0], found[2], found[3], self._errors.get(name, ""))
            for name in self._tables
            if (found := self._index.get(name)) is not None
        }

    def refresh(self, now: int, *, only_new: bool = False) -> None:
        """Applies tables that were read, starts due reads; at first waits for all.

        With ``only_new`` tables that have a version keep it: an epoch is continued.
        """
        for name, held in self._tables.items():
            if only_new and name in self._index:
                continue
            if name not in self._tried:
                self._tried[name] = now
                self._take(name, _read(held, None), now)
            elif name in self._reading:
                thread, found = self._reading[name]
                if not thread.is_alive():
                    del self._reading[name]
                    self._tried[name] = now
                    self._take(name, found, now)
            elif held.refresh is not None and not 0 <= now - self._tried[name] < held.refresh:
                self._tried[name] = now
                self._begin(name, held, now)

    def _begin(self, name: str, held: HeldTable, now: int) -> None:
        if not self.background:
            self._take(name, _read(held, self._tokens.get(name)), now)
            return
        found = _Reading()

        def run() -> None:
            mine = _read(held, self._tokens.get(name))
            found.token, found.contents, found.error = mine.token, mine.contents, mine.error

        thread = threading.Thread(target=run, name=f"millwheel-lookup-{name}", daemon=True)
        self._reading[name] = thread, found
        thread.start()

    def _take(self, name: str, found: _Reading, now: int) -> None:
        if found.error is not None:
            if name not in self._index:
                raise found.error
            version = self._index[name][0]
            logger.warning("%s; records still see version %d", found.error, version)
            self._errors[name] = str(found.error)
            return
        self._errors.pop(name, None)
        self._tokens[name] = found.token
        if found.contents is None:
            self._index[name][3] = now  # in memory: what the journal has is when it last changed
            return
        known = self._index.get(name)
        digest, size = _digest(found.contents)
        if size > LARGEST:
            raise InputError(
                f"lookup {name!r}: the table {self._tables[name].table!r} has {size >> 20} MiB, and every "
                f"worker would hold it in memory: at most {LARGEST >> 20} MiB. Read fewer columns, or "
                "join it as a stream"
            )
        if known is not None and known[1] == digest:
            known[3] = now
            return
        self._write(name, found.contents, (known[0] if known is not None else 0) + 1, digest, now)

    def _write(self, name: str, contents: Contents, version: int, digest: bytes, now: int) -> None:
        batch: list[tuple[bytes, bytes]] = []
        size = 0
        prefix = table_prefix(name)
        kept = version_prefix(name, version - 1)

        def older(snapshot: Any) -> list[bytes]:
            every = snapshot.scan(prefix, after(prefix))
            return [key for key, _ in every if not kept <= key < after(kept)]

        deletes = self._journal.read(older)
        for entry in entries_of(name, version, contents):
            batch.append(entry)
            size += len(entry[1])
            if size >= _AT_ONCE:
                self._journal.write(batch, deletes)
                batch, deletes, size = [], [], 0
        self._index[name] = [version, digest, len(contents.rows), now]
        batch.append((_INDEX, pack(self._index)))
        self._journal.write(batch, deletes)
        logger.info("lookup %r: version %d, %d rows", name, version, len(contents.rows))


def _read(held: HeldTable, known: Any) -> _Reading:
    """Reads a table, unless its token is unchanged."""
    try:
        token = held.token()
        if token is not None and token == known:
            return _Reading(token)
        return _Reading(token, held.read())
    except InputError as error:
        return _Reading(error=error)


def _digest(contents: Contents) -> tuple[bytes, int]:
    """A digest of a version, independent of its rows' order, and its size."""
    digest = hashlib.blake2b(pack(contents.columns), digest_size=16)
    size = 0
    for row in sorted(map(pack, contents.rows)):
        digest.update(len(row).to_bytes(8, "big") + row)
        size += len(row)
    return digest.digest(), size
