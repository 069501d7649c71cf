"""The shared store: PostgreSQL, a schema with one table for the journal and one for each shard.

It is for clusters whose hosts share no disk. A read is a round trip, so a step says beforehand what it will
read (`Snapshot.prefetch`), and a write is two: the first brings the sequencer, the second the changes and the
commit. A shard has one writer at a time, by an advisory lock that lasts as long as the transaction: so what
a guard has seen still holds when the write is made, also where it has seen nothing.

A connection may be lost in the middle of a commit, and nobody knows whether it was made. The write is then
made again from its beginning, its guard included: a guard recognises its own write (see `Shard.write`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import psycopg

from millwheel.errors import StoreError
from millwheel.model.secrets import percent_encoded, without_secrets
from millwheel.store.base import Guard, Shard, Store
from millwheel.store.postgres.row_runs import Listed, Log, Rows, is_row, refuse_runs, row_part
from millwheel.store.postgres.row_runs import look_up as find
from millwheel.store.postgres.schema import About, make, quoted, read_about, tables
from millwheel.store.postgres.sessions import ByteArray, PlaceArray, Session, Sessions, Traffic, chunks
from millwheel.store.postgres.snapshot import PostgresSnapshot, Queries, arrays, groups_of, look_up
from millwheel.store.postgres.timer_bundles import (
    Bundler,
    Entries,
    Removal,
    index_part,
    is_mark,
    refuse_bundles,
)

DEFAULT_SCHEMA = "millwheel"
_PATIENCE = 60.0  # seconds that a server may be away: a restart, or the promotion of a standby
_FIRST_PATIENCE = 5.0  # before the first connection: as a rule the URL is wrong
_TAKEOVER = 10.0  # seconds until a connection that was ended must be gone
_STATEMENT = 8 << 20  # bytes of rows in one statement: a server copies them more than once
_MERGES = 150_000  # the first version of a server that knows MERGE
_WRITER = (
    "SELECT pg_advisory_xact_lock($1, $2), set_config('idle_in_transaction_session_timeout', '30s', true)"
)
# A process that is stopped inside a write, and never goes on, must not keep the shard from its new owner.


class _Otherwise(Exception):
    """The table is not as it was taken to be; nothing is written."""


@dataclass
class _Changes:
    """What a write does, in this order."""

    deletes: list[bytes]
    removal: Removal
    """Of marks: which rows it takes is known when their bundles are."""
    rows: Rows
    """What becomes of the rows of keys."""
    kept: bool
    """Whether those may wait in a run."""
    places: dict[bytes, bytes]
    """Where those of them stood that were read."""
    puts: Entries
    new: Entries
    """What is taken not to be there."""

    def looked_for(self) -> _Changes:
        """The same, with nothing taken for granted."""
        return replace(self, places={}, puts=self.puts + self.new, new=[])


class PostgresShard:
    """One table; with a bundler, the marks of its timer index are packed, and rows may wait in runs."""

    def __init__(
        self,
        sessions: Sessions,
        table: str,
        lock: tuple[int, int],
        bundler: Bundler | None = None,
        *,
        readonly: bool = False,
    ) -> None:
        self._readonly = readonly
        self._sessions = sessions
        self._queries = Queries(table, packed=bundler is not None)
        self._lock = lock
        self._bundler = bundler
        self._log = Log()
        self._places: dict[bytes, bytes] = {}

    @contextmanager
    def snapshot(self) -> Iterator[PostgresSnapshot]:
        snapshot = PostgresSnapshot(self._sessions, self._queries, self._places, self._log)
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
        changes = self._changes(dict(puts), set(deletes), kept=kept)
        self._places = {}
        try:
            self._sessions.run(lambda session: self._attempt(session, changes, guard))
        except _Otherwise:
            changes = changes.looked_for()
            self._sessions.run(lambda session: self._write(session, changes, guard))

    def _changes(self, last: dict[bytes, bytes], deletes: set[bytes], *, kept: bool) -> _Changes:
        keys = sorted(last)
        gone = sorted(deletes.difference(last))
        rows: Rows = {}
        removal = Removal()
        bundles: Entries = []
        if self._bundler is not None:
            for names in (keys, gone):
                refuse_bundles(names)
                refuse_runs(names)
            rows = dict.fromkeys(_cut(gone, row_part(gone)))
            rows.update((key, last[key]) for key in _cut(keys, row_part(keys)))
            valued = [key for key in keys[index_part(keys)] if last[key]]
            removal = Removal(_cut(gone, index_part(gone)) + list(filter(is_mark, valued)))
        # An entry without a value, as in the index of timers, says nothing but that it is there: nobody
        # has a reason to write it twice, and it need not be looked for first.
        empty = [key for key in keys if not last[key]]
        if self._bundler is not None:
            bundles = self._bundler.pack(_cut(empty, index_part(empty)))
        puts = [(key, last[key]) for key in keys if last[key]]
        new = [(key, b"") for key in empty] + bundles
        return _Changes(gone, removal, rows, kept, self._places, puts, new)

    def _attempt(self, session: Session, changes: _Changes, guard: Guard | None) -> None:
        try:
            self._write(session, changes, guard)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DivisionByZero):
            raise _Otherwise from None

    def _write(self, session: Session, changes: _Changes, guard: Guard | None) -> None:
        """All of it, or nothing where something is not as it was taken to be."""
        queries, removal = self._queries, changes.removal
        session.send("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        session.send(_WRITER, self._lock)
        # Where the marks stand that go, and which rows wait: it comes with what the guard asks for.
        groups, ranges = removal.bundles(), removal.rows()
        bundles = session.send(queries.bundles, groups_of(groups)) if groups else None
        marks = session.send(queries.rows, arrays(ranges)) if ranges else None
        waiting = session.send(queries.runs) if changes.rows else None
        if guard is not None:
            guard(lambda key: self._get(session, key))
        listed: Listed = session.answer(waiting)
        more, cut = removal.changes(session.answer(bundles), session.answer(marks))
        deletes, placed, puts, new = changes.deletes + more, [], changes.puts + cut, changes.new
        rows = changes.rows
        run = self._log.next(changes.rows, listed) if changes.kept and changes.rows else None
        if run is not None:
            new = [*new, run]
        else:
            rows = self._all_rows(session, listed, rows)
            places = changes.places
            deletes += [name for name, _ in listed]
            deletes += [key for key, value in rows.items() if value is None]
            there = [(key, value) for key, value in rows.items() if value is not None]
            placed = [(key, value, places[key]) for key, value in there if key in places]
            puts += [entry for entry in there if entry[0] not in places]
        if deletes:
            session.send(queries.delete, (ByteArray(deletes),))
        for chunk in chunks(placed, _STATEMENT):
            keys, values, stood = zip(*chunk, strict=True)
            given = (ByteArray(keys), ByteArray(values), PlaceArray(stood), len(keys))
            session.send(queries.replace, given)
        put = queries.merge if session.version >= _MERGES else queries.upsert
        for statement, entries in ((put, puts), (queries.add, new)):
            for part in chunks(entries, _STATEMENT):
                keys, values = zip(*part, strict=True)
                session.send(statement, (ByteArray(keys), ByteArray(values)))
        session.send("COMMIT")
        session.sync()
        if run is not None:
            self._log.add(run[0], changes.rows)
        elif listed:
            self._log.brought_in(len(rows))

    def _all_rows(self, session: Session, listed: Listed, rows: Rows) -> Rows:
        """What becomes of rows, in order, with those that have waited."""
        if not listed:
            return rows
        waited: Rows = {}
        for each in (*self._runs(session, listed), rows):
            waited.update(each)
        return dict(sorted(waited.items()))

    def _runs(self, session: Session, listed: Listed) -> list[Rows]:
        def fetch(names: list[bytes]) -> list[tuple[bytes, bytes]]:
            return session.rows(self._queries.get_each, (ByteArray(names),))

        return self._log.rows(listed, fetch)

    def _get(self, session: Session, key: bytes) -> bytes | None:
        """What a guard asks for."""
        if self._queries.packed and is_row(key):
            found = find(self._runs(session, session.rows(self._queries.runs)), [key])
            if key in found:
                return found[key]
        return look_up(session.rows, self._queries, [key]).get(key)


def _cut(keys: list[bytes], part: slice) -> list[bytes]:
    """Takes a part out of some keys."""
    found = keys[part]
    del keys[part]
    return found


class PostgresStore(Store):
    """The store in a schema of a database.

    The URL is libpq's, with ``schema`` (default: ``millwheel``) and ``patience`` (seconds that the server may
    be away, default: 60) as parameters of ours. With ``existing``, a store that is not there is not made;
    with ``readonly``, it is not made or brought up to date either, and every write is refused.
    """

    def __init__(self, url: str, *, shards: int = 1, existing: bool = False, readonly: bool = False) -> None:
        self._url, ours = _split(url)
        self._schema = ours.get("schema", DEFAULT_SCHEMA)
        name = f"the store {without_secrets(self._url)} (schema {self._schema})"
        patience = _number(name, ours.get("patience", str(_PATIENCE)))
        first = patience if "id" in ours else min(patience, _FIRST_PATIENCE)
        self._name = name
        self.sessions = Sessions(self._url, name=name, patience=patience, first_patience=first)
        """The connections, for statements beside those of the store."""
        self._readonly = readonly
        self._keeper: Session | None = None
        self._keeping = threading.Lock()
        self._owner = ""
        try:
            self._about = self._open(shards, existing=existing or readonly, identity=ours.get("id"))
        except BaseException:
            self.close()
            raise
        separator = "&" if "?" in self._url else "?"
        own = "".join(f"&{key}={ours[key]}" for key in ("patience",) if key in ours)
        self.address = f"{self._url}{separator}schema={quote(self._schema)}{own}&id={self._about.identity}"
        self.tables = [f"{quoted(self._schema)}.{table}" for table in tables(self._about.shards)]
        """The tables, with their schema: the journal's, then one for each shard."""
        found = [
            PostgresShard(
                self.sessions,
                table,
                (self._about.lock, number),
                Bundler() if number > 1 else None,
                readonly=readonly,
            )
            for number, table in enumerate(self.tables, start=1)
        ]
        self.journal: Shard = found[0]
        self.shards: Sequence[Shard] = found[1:]
        self.sessions.on_connect = self._keep

    def _open(self, shards: int, *, existing: bool, identity: str | None) -> About:
        upgrade = not self._readonly
        about = self.sessions.run(lambda session: read_about(session, self._schema, upgrade=upgrade))
        if about is None:
            if existing or identity is not None:
                raise StoreError(f"there is no store in {self._name[len('the store ') :]}")
            self.sessions.run(lambda session: make(session, self._schema, shards))
            self.sessions.close()  # psycopg forgets its statements where tables are altered
            about = self.sessions.run(lambda session: read_about(session, self._schema))
        if about is None or (identity is not None and about.identity != identity):
            raise StoreError(f"{self._name} is another one by now: it was removed and made anew")
        return about

    @property
    def traffic(self) -> Traffic:
        """What this process has sent to the server, and how often it has waited for it."""
        return self.sessions.traffic

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        if not self._take_lock(owner, takeover=takeover):
            raise StoreError(
                f"{self._name} is in use by {self._holder()}: one driver runs a pipeline at a time; stop "
                "that one first, give this one a store of its own, or, if that one hangs, take over from it "
                "(takeover=True, millwheel run --take-over)"
            )

    def _take_lock(self, owner: str, *, takeover: bool) -> bool:
        """The lock is the session's own: a driver that dies, or is cut off, has it no longer."""
        session, taken = self.sessions.hold(lambda session: self._try_lock(session, owner, takeover=takeover))
        if not taken:
            self.sessions.give(session)
            return False
        if self._keeper is not None:
            self._keeper.close()
        self._keeper, self._owner = session, owner
        return True

    def _try_lock(self, session: Session, owner: str, *, takeover: bool) -> bool:
        lock = (self._about.lock, 0)
        end = time.monotonic() + _TAKEOVER
        while not session.rows("SELECT pg_try_advisory_lock($1, $2)", lock)[0][0]:
            if not takeover or time.monotonic() > end:
                return False
            session.rows(_END_HOLDER, lock)
            time.sleep(0.02)
        session.send(f"UPDATE {quoted(self._schema)}.about SET value = $1 WHERE name = 'owner'", (owner,))
        session.sync()
        return True

    def _keep(self) -> None:
        """Connections were lost, and perhaps that of the lock too: takes it again, if nobody else has it.

        Where somebody has, he has a newer sequencer as well, and our next write is refused.
        """
        if self._keeper is None or not self._keeping.acquire(blocking=False):
            return  # another thread looks at it already
        try:
            self._keeper.rows("SELECT 1")
        except psycopg.Error:
            self._keeper.close()
            self._keeper = None
            self._take_lock(self._owner, takeover=False)
        finally:
            self._keeping.release()

    def _holder(self) -> str:
        query = f"SELECT value FROM {quoted(self._schema)}.about WHERE name = 'owner'"
        found = self.sessions.run(lambda session: session.rows(query))
        return str(found[0][0]) or "another driver"

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        self.sessions.close()

    def size(self) -> int:
        query = f"SELECT {' + '.join(f'pg_total_relation_size({_text(table)})' for table in self.tables)}"
        return int(self.sessions.run(lambda session: session.rows(query))[0][0])

    def in_use(self) -> bool | None:
        found = self.sessions.run(lambda session: session.rows(_HOLDER, (self._about.lock, 0)))
        return bool(found)

    def compact(self) -> tuple[int, int]:
        """Writes every table anew (VACUUM FULL); the bytes before and after.

        Only for who holds the lock: a table is closed to everybody meanwhile, and needs room beside itself.
        """
        before = self.size()
        for table in self.tables:
            self.sessions.run(partial(Session.plainly, query=f"VACUUM (FULL, ANALYZE) {table}"))
        return before, self.size()


_HELD = """
    FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = ($1::int8 & 4294967295)::oid AND objid = $2::oid
"""
_HOLDER = f"SELECT pid {_HELD}"
_END_HOLDER = f"SELECT pg_terminate_backend(pid) {_HELD}"


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _split(url: str) -> tuple[str, dict[str, str]]:
    """A URL as libpq takes it, and the parameters in it that are ours."""
    try:
        parts = urlsplit(percent_encoded(url))
    except ValueError as error:
        raise StoreError(f"the store {without_secrets(url)}: {error}") from None
    theirs = []
    ours: dict[str, str] = {}
    for setting in parts.query.split("&"):
        name, _, value = setting.partition("=")
        if name in ("schema", "patience", "id"):
            ours[name] = unquote(value)
        elif setting:
            theirs.append(setting)
    return urlunsplit(parts._replace(query="&".join(theirs))), ours


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise StoreError(f"{name}: patience is a number of seconds, not {text!r}") from None
