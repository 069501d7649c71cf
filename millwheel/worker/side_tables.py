"""Versions of side tables: their journal entries, and a worker's copies.

    L table version part     a part of a version: its columns and how many parts there are, then rows

The driver writes all parts of a version before it journals a plan that names it, and removes a version once
an epoch with the version after the next one is committed. So the version of an epoch that runs, or is run
again, always exists; a worker that finds none runs a task of an epoch that is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from millwheel.errors import EngineError
from millwheel.model.codec import pack, unpack
from millwheel.model.keys import key_bytes
from millwheel.model.side_table import Contents, HeldTable, Loaded
from millwheel.store.base import Snapshot, Store, read
from millwheel.store.keyspace import JournalKey, after
from millwheel.worker.plan import Plan

_PART = 1 << 20  # bytes of a part: large for few entries, small for a log of objects and for PostgreSQL
_KEPT = 2  # versions that a worker has in memory: the present one, and the one of an epoch that is retried


def table_prefix(table: str) -> bytes:
    """The beginning of all that the journal has of a table."""
    return JournalKey.SIDE_TABLES + hashlib.blake2b(key_bytes(table), digest_size=16).digest()


def version_prefix(table: str, version: int) -> bytes:
    """The beginning of a version's parts."""
    return table_prefix(table) + version.to_bytes(8, "big")


def entries_of(table: str, version: int, contents: Contents) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a version; the first, with their number, comes last."""
    prefix, count = version_prefix(table, version), 0
    rows: list[bytes] = []
    size = 0
    for row in contents.rows:
        rows.append(pack(row))
        size += len(rows[-1])
        if size >= _PART:
            count += 1
            yield prefix + count.to_bytes(4, "big"), pack(rows)
            rows, size = [], 0
    if rows:
        count += 1
        yield prefix + count.to_bytes(4, "big"), pack(rows)
    yield prefix + bytes(4), pack([contents.columns, count])


def read_version(snapshot: Snapshot, table: str, version: int) -> Contents | None:
    """Return a version of a table; None where it is not, or not wholly, there."""
    prefix = version_prefix(table, version)
    parts = [value for _, value in snapshot.scan(prefix, after(prefix))]
    if not parts:
        return None
    columns, count = unpack(parts[0])
    if len(parts) != count + 1:
        return None
    return Contents(columns, [unpack(row) for part in parts[1:] for row in unpack(part)])


class SideTables:
    """The side tables that a worker has in memory, version by version."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: dict[str, dict[int, Loaded]] = {}

    def of(self, plan: Plan, table: HeldTable) -> Loaded:
        """Return the version of a table that an epoch's records see."""
        version = plan.lookups.get(table.name)
        if version is None:
            raise EngineError(
                f"epoch {plan.epoch} was planned without the table of lookup {table.name!r}: run the former "
                "pipeline once more on this store, then change it"
            )
        mine = self._loaded.setdefault(table.name, {})
        if version not in mine:
            mine[version] = self._load(plan, table, version)
            for old in sorted(mine)[:-_KEPT]:
                if old != version:
                    del mine[old]
        return mine[version]

    def _load(self, plan: Plan, table: HeldTable, version: int) -> Loaded:
        def look(snapshot: Snapshot) -> Any:
            return read_version(snapshot, table.name, version)

        found: Contents | None = read(self._store.journal, look)
        if found is None:
            raise EngineError(
                f"epoch {plan.epoch}: version {version} of the table of lookup {table.name!r} is not in the "
                "store: the epoch is over, and this task is a late one"
            )
        return Loaded(found, table.on)
