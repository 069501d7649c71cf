"""One table of PostgreSQL as a shard: how it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg

from millwheel.errors import StoreError
from millwheel.store.base import Guard
from millwheel.store.postgres import row_runs
from millwheel.store.postgres.packing import Packing, Split, look_up, plain
from millwheel.store.postgres.queries import Queries, arrays, groups_of
from millwheel.store.postgres.row_runs import Listed, Rows
from millwheel.store.postgres.sessions import ByteArray, PlaceArray, Session, Sessions, chunks
from millwheel.store.postgres.snapshot import PostgresSnapshot
from millwheel.store.postgres.timer_bundles import Entries

STATEMENT = 8 << 20  # bytes of rows in one statement: a server copies them more than once
MERGES = 150_000  # the first version of the server with MERGE
WRITER = (
    "SELECT pg_advisory_xact_lock($1, $2), set_config('idle_in_transaction_session_timeout', '30s', true)"
)
# A process that is stopped inside a write, and never continues, must not block the shard's new owner.


class _Otherwise(Exception):
    """The table is not as assumed; nothing is written."""


@dataclass
class _Changes:
    """A write."""

    split: Split
    kept: bool
    """Whether rows of keys may be buffered in a run."""
    places: dict[bytes, bytes]
    """The locations of rows that were read."""

    def looked_for(self) -> _Changes:
        """The same, without assumptions."""
        split = replace(self.split, puts=self.split.puts + self.split.new, new=[])
        return replace(self, split=split, places={})


class PostgresShard:
    """One table; with a bundler, timer marks are packed, and rows may be in runs."""

    def __init__(
        self,
        sessions: Sessions,
        table: str,
        lock: tuple[int, int],
        packing: Packing | None = None,
        *,
        readonly: bool = False,
    ) -> None:
        self._readonly = readonly
        self._sessions = sessions
        self._queries = Queries(table, packed=packing is not None)
        self._lock = lock
        self.packing = packing
        self._places: dict[bytes, bytes] = {}

    @contextmanager
    def snapshot(self) -> Iterator[PostgresSnapshot]:
        snapshot = PostgresSnapshot(self._sessions, self._queries, self._places, self.packing)
        try:
            yield snapshot
        finally:
            snapshot.close()

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        if self._readonly:
            raise StoreError(f"{self._sessions.name} was opened to be read only")
        last, gone = dict(puts), set(deletes)
        if self.packing is not None:
            split = self.packing.split(last, gone)
        else:
            split = plain(last, sorted(last), sorted(gone.difference(last)))
        changes = _Changes(split, kept, self._places)
        self._places = {}
        try:
            self._sessions.run(lambda session: self._attempt(session, changes, guard))
        except _Otherwise:
            changes = changes.looked_for()
            self._sessions.run(lambda session: self._write(session, changes, guard))

    def _attempt(self, session: Session, changes: _Changes, guard: Guard | None) -> None:
        try:
            self._write(session, changes, guard)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DivisionByZero):
            raise _Otherwise from None

    def _write(self, session: Session, changes: _Changes, guard: Guard | None) -> None:
        """Makes all changes, or none if an assumption fails."""
        queries, split = self._queries, changes.split
        session.send("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        session.send(WRITER, self._lock)
        # The bundles of removed marks, and the list of runs: read with what the guard reads.
        groups, ranges = split.removal.bundles(), split.removal.rows()
        bundles = session.send(queries.bundles, groups_of(groups)) if groups else None
        marks = session.send(queries.rows, arrays(ranges)) if ranges else None
        waiting = session.send(queries.runs) if split.rows else None
        if guard is not None:
            guard(lambda key: self._get(session, key))
        listed: Listed = session.answer(waiting)
        more, cut = split.removal.changes(session.answer(bundles), session.answer(marks))
        deletes, placed, puts, new = split.deletes + more, [], split.puts + cut, split.new
        run = self._next_run(changes, listed)
        if run is not None:
            new = [*new, run]
        else:
            rows = self._all_rows(session, listed, split.rows)
            places = changes.places
            deletes += [name for name, _ in listed]
            deletes += [key for key, value in rows.items() if value is None]
            there = [(key, value) for key, value in rows.items() if value is not None]
            placed = [(key, value, places[key]) for key, value in there if key in places]
            puts += [entry for entry in there if entry[0] not in places]
        self._send(session, deletes, placed, puts, new)
        session.send("COMMIT")
        session.sync()
        if self.packing is not None and run is not None:
            self.packing.log.add(run[0], split.rows)
        elif self.packing is not None and listed:
            self.packing.log.brought_in()

    def _next_run(self, changes: _Changes, listed: Listed) -> tuple[bytes, bytes] | None:
        """A run for the changed rows; None if they are to be stored as rows."""
        if self.packing is None or not changes.kept or not changes.split.rows:
            return None
        return self.packing.log.next(changes.split.rows, listed)

    def _send(
        self,
        session: Session,
        deletes: list[bytes],
        placed: list[tuple[bytes, bytes, bytes]],
        puts: Entries,
        new: Entries,
    ) -> None:
        """Sends the statements that change the table."""
        queries = self._queries
        if deletes:
            session.send(queries.delete, (ByteArray(deletes),))
        for chunk in chunks(placed, STATEMENT):
            keys, values, stood = zip(*chunk, strict=True)
            given = (ByteArray(keys), ByteArray(values), PlaceArray(stood), len(keys))
            session.send(queries.replace, given)
        put = queries.merge if session.version >= MERGES else queries.upsert
        for statement, entries in ((put, puts), (queries.add, new)):
            for part in chunks(entries, STATEMENT):
                keys, values = zip(*part, strict=True)
                session.send(statement, (ByteArray(keys), ByteArray(values)))

    def _all_rows(self, session: Session, listed: Listed, rows: Rows) -> Rows:
        """The changed rows, in order, merged with those in runs."""
        if not listed:
            return rows
        waited: Rows = {}
        for each in (*self._runs(session, listed), rows):
            waited.update(each)
        return dict(sorted(waited.items()))

    def _runs(self, session: Session, listed: Listed) -> list[Rows]:
        return self.packing.runs(listed, session.rows, self._queries) if self.packing is not None else []

    def _get(self, session: Session, key: bytes) -> bytes | None:
        """Reads a key for a guard."""
        if self.packing is not None and row_runs.is_row(key):
            found = row_runs.look_up(self._runs(session, session.rows(self._queries.runs)), [key])
            if key in found:
                return found[key]
        return look_up(session.rows, self._queries, [key]).get(key)
