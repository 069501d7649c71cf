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
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import psycopg

from millwheel.errors import StoreError
from millwheel.model.secrets import without_secrets
from millwheel.store.base import Guard, Range, Shard, SnapshotLost, Store
from millwheel.store.schema import About, make, quoted, read_about, tables
from millwheel.store.sessions import ByteArray, Session, Sessions, Traffic, chunks

DEFAULT_SCHEMA = "millwheel"
_PATIENCE = 60.0  # seconds that a server may be away: a restart, or the promotion of a standby
_FIRST_PATIENCE = 5.0  # before the first connection: as a rule the URL is wrong
_TAKEOVER = 10.0  # seconds until a connection that was ended must be gone
_STATEMENT = 8 << 20  # bytes of rows in one statement: a server copies them more than once
_PAGE = 8 << 20  # bytes of rows in one answer
_FIRST_ROWS = 256  # of a scan: most end early
_MOST_ROWS = 1 << 16
_MERGES = 150_000  # the first version of a server that knows MERGE
_WRITER = (
    "SELECT pg_advisory_xact_lock($1, $2), set_config('idle_in_transaction_session_timeout', '30s', true)"
)
# A process that is stopped inside a write, and never goes on, must not keep the shard from its new owner.

# Up to $3 entries of a range, but no more once they have passed the bytes of a page.
_READ_PAGE = """
    SELECT key, value FROM (
        SELECT key, value, coalesce(
            sum(octet_length(value)) OVER (ORDER BY key ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0
        ) AS before
        FROM (
            SELECT key, value FROM {table} WHERE key >= {start} AND key < {stop} ORDER BY key LIMIT {rows}
        ) AS entries
    ) AS sized WHERE before < {bytes}
"""


class _Queries:
    """The statements of one table."""

    def __init__(self, table: str) -> None:
        self.get = f"SELECT value FROM {table} WHERE key = $1"
        self.get_each = f"SELECT key, value FROM {table} WHERE key = ANY($1)"
        self.page = _READ_PAGE.format(table=table, start="$1", stop="$2", rows="$3::int8", bytes=_PAGE)
        inner = _READ_PAGE.format(table=table, start="r.start", stop="r.stop", rows="r.most", bytes=_PAGE)
        self.pages = (
            "SELECT r.number, p.key, p.value FROM unnest($1::bytea[], $2::bytea[], $3::int8[]) "
            f"WITH ORDINALITY AS r (start, stop, most, number) CROSS JOIN LATERAL ({inner}) AS p"
        )
        self.delete = f"DELETE FROM {table} WHERE key = ANY($1)"
        given = "unnest($1::bytea[], $2::bytea[])"
        self.add = f"INSERT INTO {table} (key, value) SELECT * FROM {given}"
        self.upsert = f"{self.add} ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"
        # A shard has one writer at a time, so nothing comes between the look and the change; the other
        # way locks each row before it changes it, which is written to the server's log too.
        self.merge = (
            f"MERGE INTO {table} AS known USING {given} AS given (key, value) ON known.key = given.key "
            "WHEN MATCHED THEN UPDATE SET value = given.value "
            "WHEN NOT MATCHED THEN INSERT (key, value) VALUES (given.key, given.value)"
        )


_Entries = list[tuple[bytes, bytes]]


class _ThereAlready(Exception):
    """An entry that was taken for a new one is not; nothing is written."""


class _Snapshot:
    """A transaction that reads, begun with its first statement."""

    def __init__(self, sessions: Sessions, queries: _Queries) -> None:
        self._sessions = sessions
        self._queries = queries
        self._session: Session | None = None
        self._ahead: dict[tuple[bytes, bytes], tuple[_Entries, bool]] = {}

    def get(self, key: bytes) -> bytes | None:
        ahead = self._ahead.get((key, key + b"\x00"))
        if ahead is not None:
            return ahead[0][0][1] if ahead[0] else None
        found = self._rows(self._queries.get, (key,))
        return found[0][0] if found else None

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        found = dict(self._rows(self._queries.get_each, (ByteArray(keys),)))
        return list(map(found.get, keys))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries, complete = self._ahead.get((start, stop), ([], False))
        yield from entries
        most = max(_FIRST_ROWS, 4 * len(entries))
        while not complete:
            if entries:
                start = entries[-1][0] + b"\x00"
            entries = self._rows(self._queries.page, (start, stop, most))
            complete = _is_last(entries, most)
            yield from entries
            most = min(4 * most, _MOST_ROWS)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        if not ranges:
            return
        starts, stops, most = zip(*ranges, strict=True)
        found: list[_Entries] = [[] for _ in ranges]
        for number, key, value in self._rows(
            self._queries.pages, (ByteArray(starts), ByteArray(stops), list(most))
        ):
            found[number - 1].append((key, value))
        for start, stop, limit, entries in zip(starts, stops, most, found, strict=True):
            entries.sort()
            self._ahead[start, stop] = (entries, _is_last(entries, limit))

    def _rows(self, query: str, parameters: Sequence[Any]) -> list[Any]:
        if self._session is None:
            self._session, found = self._sessions.hold(lambda session: _begin(session, query, parameters))
            return found
        try:
            return self._session.rows(query, parameters)
        except psycopg.Error as error:
            self._session.close()
            raise SnapshotLost(str(self._sessions.explained(error))) from None

    def close(self) -> None:
        """Ends the transaction, without waiting for it."""
        session, self._session = self._session, None
        if session is not None:
            try:
                session.send("COMMIT")
            except psycopg.Error:
                session.close()
            else:
                self._sessions.give(session)


def _begin(session: Session, query: str, parameters: Sequence[Any]) -> list[Any]:
    session.send("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    return session.rows(query, parameters)


def _is_last(entries: _Entries, most: int) -> bool:
    """Whether a page ends because there is no more."""
    return len(entries) < most and sum(len(value) for _, value in entries) < _PAGE


class PostgresShard:
    """One table."""

    def __init__(self, sessions: Sessions, table: str, lock: tuple[int, int]) -> None:
        self._sessions = sessions
        self._queries = _Queries(table)
        self._lock = lock

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        snapshot = _Snapshot(self._sessions, self._queries)
        try:
            yield snapshot
        finally:
            snapshot.close()

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
    ) -> None:
        last = dict(puts)
        entries = [(key, last[key]) for key in sorted(last)]
        gone = sorted(set(deletes).difference(last))
        # An entry without a value, as in the index of timers, says nothing but that it is there: nobody
        # has a reason to write it twice, and it need not be looked for first.
        marks = [entry for entry in entries if not entry[1]]
        others = [entry for entry in entries if entry[1]] if marks else entries
        try:
            self._sessions.run(lambda session: self._add(session, others, marks, gone, guard))
        except _ThereAlready:
            self._sessions.run(lambda session: self._write(session, entries, [], gone, guard))

    def _add(
        self, session: Session, puts: _Entries, new: _Entries, deletes: list[bytes], guard: Guard | None
    ) -> None:
        try:
            self._write(session, puts, new, deletes, guard)
        except psycopg.errors.UniqueViolation:
            raise _ThereAlready from None

    def _write(
        self, session: Session, puts: _Entries, new: _Entries, deletes: list[bytes], guard: Guard | None
    ) -> None:
        """Deletes, puts what may be there or not, and adds what is ``new``; nothing if that is there."""
        queries = self._queries

        def get(key: bytes) -> bytes | None:
            found = session.rows(queries.get, (key,))
            return found[0][0] if found else None

        session.send("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        session.send(_WRITER, self._lock)
        if guard is not None:
            guard(get)
        if deletes:
            session.send(queries.delete, (ByteArray(deletes),))
        put = queries.merge if session.version >= _MERGES else queries.upsert
        for statement, entries in ((put, puts), (queries.add, new)):
            for chunk in chunks(entries, _STATEMENT):
                keys, values = zip(*chunk, strict=True)
                session.send(statement, (ByteArray(keys), ByteArray(values)))
        session.send("COMMIT")
        session.sync()


class PostgresStore(Store):
    """The store in a schema of a database.

    The URL is libpq's, with ``schema`` (default: ``millwheel``) and ``patience`` (seconds that the server may
    be away, default: 60) as parameters of ours. With ``existing``, a store that is not there is not made.
    """

    def __init__(self, url: str, *, shards: int = 1, existing: bool = False) -> None:
        self._url, ours = _split(url)
        self._schema = ours.get("schema", DEFAULT_SCHEMA)
        name = f"the store {without_secrets(self._url)} (schema {self._schema})"
        patience = _number(name, ours.get("patience", str(_PATIENCE)))
        first = patience if "id" in ours else min(patience, _FIRST_PATIENCE)
        self._name = name
        self._sessions = Sessions(self._url, name=name, patience=patience, first_patience=first)
        self._keeper: Session | None = None
        self._keeping = threading.Lock()
        self._owner = ""
        try:
            self._about = self._open(shards, existing=existing, identity=ours.get("id"))
        except BaseException:
            self.close()
            raise
        separator = "&" if "?" in self._url else "?"
        own = "".join(f"&{key}={ours[key]}" for key in ("patience",) if key in ours)
        self.address = f"{self._url}{separator}schema={quote(self._schema)}{own}&id={self._about.identity}"
        self._tables = [f"{quoted(self._schema)}.{table}" for table in tables(self._about.shards)]
        found = [
            PostgresShard(self._sessions, table, (self._about.lock, number))
            for number, table in enumerate(self._tables, start=1)
        ]
        self.journal: Shard = found[0]
        self.shards: Sequence[Shard] = found[1:]
        self._sessions.on_connect = self._keep

    def _open(self, shards: int, *, existing: bool, identity: str | None) -> About:
        about = self._sessions.run(lambda session: read_about(session, self._schema))
        if about is None:
            if existing or identity is not None:
                raise StoreError(f"there is no store in {self._name[len('the store ') :]}")
            self._sessions.run(lambda session: make(session, self._schema, shards))
            self._sessions.close()  # psycopg forgets its statements where tables are altered
            about = self._sessions.run(lambda session: read_about(session, self._schema))
        if about is None or (identity is not None and about.identity != identity):
            raise StoreError(f"{self._name} is another one by now: it was removed and made anew")
        return about

    @property
    def traffic(self) -> Traffic:
        """What this process has sent to the server, and how often it has waited for it."""
        return self._sessions.traffic

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        if not self._take_lock(owner, takeover=takeover):
            raise StoreError(
                f"{self._name} is in use by {self._holder()}: one driver runs a pipeline at a time; stop "
                "that one first, give this one a store of its own, or, if that one hangs, take over from it "
                "(takeover=True, millwheel run --take-over)"
            )

    def _take_lock(self, owner: str, *, takeover: bool) -> bool:
        """The lock is the session's own: a driver that dies, or is cut off, has it no longer."""
        session, taken = self._sessions.hold(
            lambda session: self._try_lock(session, owner, takeover=takeover)
        )
        if not taken:
            self._sessions.give(session)
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
        found = self._sessions.run(lambda session: session.rows(query))
        return str(found[0][0]) or "another driver"

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        self._sessions.close()

    def size(self) -> int:
        query = f"SELECT {' + '.join(f'pg_total_relation_size({_text(table)})' for table in self._tables)}"
        return int(self._sessions.run(lambda session: session.rows(query))[0][0])

    def in_use(self) -> bool | None:
        found = self._sessions.run(lambda session: session.rows(_HOLDER, (self._about.lock, 0)))
        return bool(found)

    def compact(self) -> tuple[int, int]:
        """Writes every table anew (VACUUM FULL); the bytes before and after.

        Only for who holds the lock: a table is closed to everybody meanwhile, and needs room beside itself.
        """
        before = self.size()
        for table in self._tables:
            self._sessions.run(partial(Session.plainly, query=f"VACUUM (FULL, ANALYZE) {table}"))
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
    parts = urlsplit(url)
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
