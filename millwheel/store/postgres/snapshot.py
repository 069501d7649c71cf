"""Readings of a store in PostgreSQL: a transaction, and pages of rows.

Bundles of marks are opened here, and rows that wait in runs are laid over those in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg

from millwheel.store.base import Range, SnapshotLost
from millwheel.store.keyspace import TIMER_SUFFIX
from millwheel.store.postgres import row_runs
from millwheel.store.postgres.row_runs import Listed, Log, Rows
from millwheel.store.postgres.sessions import ByteArray, Session, Sessions
from millwheel.store.postgres.timer_bundles import (
    BUNDLE_KEY,
    Entries,
    Merge,
    bundle_range,
    hides,
    is_bundle,
    is_mark,
    marks_of,
    touches,
)

_PAGE = 8 << 20  # bytes of rows in one answer
_FIRST_ROWS = 256  # of a scan: most end early
_MOST_ROWS = 1 << 16
_ROWS = (b"R", b"S")  # where the rows of keys are
_MOST_PLACES = 200_000  # of rows that were read since the last write

_KIND = 5  # bytes: a group without its time
_BEHIND = f"'\\x{'ff' * BUNDLE_KEY}'::bytea"  # behind all bundles that begin with something

_RANGE = "SELECT key, value FROM {table} WHERE key >= {start} AND key < {stop}"

# Up to so many entries of a range, but no more once they have passed the bytes of a page.
_READ_PAGE = f"""
    SELECT key, value FROM (
        SELECT key, value, coalesce(
            sum(octet_length(value)) OVER (ORDER BY key ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0
        ) AS before
        FROM ({_RANGE} ORDER BY key LIMIT {{rows}}) AS entries
    ) AS sized WHERE before < {_PAGE}
"""

# Up to so many bundles of a range, but no other group once that many marks have come.
_READ_BUNDLES = f"""
    SELECT key, value FROM (
        SELECT key, value, coalesce(
            sum(get_byte(value, 0) * 256 + get_byte(value, 1)) OVER (
                ORDER BY substr(key, 1, {TIMER_SUFFIX}) GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0
        ) AS before
        FROM ({_RANGE} AND octet_length(key) = {BUNDLE_KEY} ORDER BY key LIMIT {{rows}}) AS bundles
    ) AS counted WHERE before < {{rows}}
"""


_BEGINNING = "SELECT key, value FROM {{table}} WHERE key >= {0} AND key < {0} || " + _BEHIND

# The bundles of the groups in $2, which begin with what is in $1: where nothing does, none is looked for.
_READ_GROUPS = f"""
    WITH bundled AS MATERIALIZED (
        SELECT start FROM unnest($1::bytea[]) AS given (start)
        WHERE (SELECT count(*) FROM ({_BEGINNING.format("given.start")} LIMIT 1) AS first) > 0
    )
    SELECT p.key, p.value FROM unnest($2::bytea[]) AS g (start)
    CROSS JOIN LATERAL ({_BEGINNING.format("g.start")}) AS p
    WHERE substr(g.start, 1, {_KIND}) IN (SELECT start FROM bundled)
"""


class Queries:
    """The statements of one table; ``packed`` if marks stand there in bundles, and rows in runs."""

    def __init__(self, table: str, *, packed: bool) -> None:
        self.packed = packed
        each = {"table": table, "start": "r.start", "stop": "r.stop", "rows": "r.most"}
        self.get_each = f"SELECT key, value FROM {table} WHERE key = ANY($1)"
        self.get_placed = f"SELECT key, value, ctid FROM {table} WHERE key = ANY($1)"
        self.runs = (
            f"SELECT key, octet_length(value) FROM {table} WHERE key >= '{row_runs.FIRST.decode()}' "
            f"AND key < '{row_runs.BEHIND.decode()}' AND octet_length(key) = {row_runs.KEY} ORDER BY key"
        )
        self.page = _READ_PAGE.format(table=table, start="$1", stop="$2", rows="$3::int8")
        self.pages = _of_each("r.number, ", 1, _READ_PAGE.format(**each))
        self.both = f"{self.pages} UNION ALL {_of_each('-r.number, ', 4, _READ_BUNDLES.format(**each))}"
        self.rows = _of_each("", 1, _RANGE.format(**each) + " ORDER BY key LIMIT r.most")
        self.bundles = _READ_GROUPS.format(table=table)
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
        # A row that was read a moment ago is where it was, unless it was written since: then its key is not
        # found there, and the division fails, and with it the write.
        self.replace = (
            f"WITH done AS (UPDATE {table} AS known SET value = given.value "
            "FROM unnest($1::bytea[], $2::bytea[], $3::tid[]) AS given (key, value, place) "
            "WHERE known.ctid = given.place AND known.key = given.key RETURNING 1) "
            "SELECT 1 / (count(*) = $4::int8)::int FROM done"
        )


def _of_each(number: str, first: int, read: str) -> str:
    """A statement that reads each of the ranges in three parameters."""
    given = f"unnest(${first}::bytea[], ${first + 1}::bytea[], ${first + 2}::int8[])"
    return (
        f"SELECT {number}p.key, p.value FROM {given} WITH ORDINALITY AS r (start, stop, most, number) "
        f"CROSS JOIN LATERAL ({read}) AS p"
    )


def arrays(ranges: Sequence[Range]) -> tuple[ByteArray, ByteArray, list[int]]:
    """Ranges as the parameters of a statement."""
    starts, stops, most = zip(*ranges, strict=True) if ranges else ((), (), ())
    return ByteArray(starts), ByteArray(stops), list(most)


def groups_of(starts: Sequence[bytes]) -> tuple[ByteArray, ByteArray]:
    """Groups as the parameters of a statement."""
    return ByteArray(sorted({start[:_KIND] for start in starts})), ByteArray(starts)


def look_up(
    rows: Callable[[str, Sequence[Any]], list[Any]], queries: Queries, keys: Sequence[bytes]
) -> dict[bytes, bytes]:
    """Of these keys those that are there, with their values."""
    found = dict(rows(queries.get_each, (ByteArray(keys),)))
    if queries.packed and row_runs.hides(min(keys), max(keys)):
        found = {key: value for key, value in found.items() if not row_runs.is_run(key)}
    if not queries.packed or max(keys) < b"T" or min(keys) >= b"V":
        return found
    groups = {b"U" + key[1:TIMER_SUFFIX] for key in keys if is_mark(key)}
    if groups:
        wanted = set(keys)
        for key, value in rows(queries.bundles, groups_of(sorted(groups))):
            if is_bundle(key):
                found.update(dict.fromkeys(wanted.intersection(marks_of(key, value)), b""))
    return {key: value for key, value in found.items() if not is_bundle(key)}


class PostgresSnapshot:
    """A transaction that reads, begun with its first statement.

    Notes in ``places`` where the rows of keys stand that it was asked for, for the write that follows.
    """

    def __init__(self, sessions: Sessions, queries: Queries, places: dict[bytes, bytes], log: Log) -> None:
        self._sessions = sessions
        self._queries = queries
        self._places = places
        self._log = log
        self._listed: Listed | None = None
        self._runs: list[Rows] | None = None
        self._session: Session | None = None
        self._ahead: dict[tuple[bytes, bytes], tuple[Entries, Entries, int]] = {}

    def get(self, key: bytes) -> bytes | None:
        if (key, key + b"\x00") in self._ahead:
            return next((value for _, value in self.scan(key, key + b"\x00")), None)
        return self.get_each([key])[0]

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        found: Rows = {}
        if row_runs.touches(min(keys), max(keys) + b"\x00"):
            found = row_runs.look_up(self._waiting(), keys)
        wanted = [key for key in keys if key not in found] if found else keys
        if wanted:
            found.update(self._look_up(wanted))
        return list(map(found.get, keys))

    def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        if not _ROWS[0] <= min(keys) <= max(keys) < _ROWS[1] or len(self._places) > _MOST_PLACES:
            return look_up(self._rows, self._queries, keys)
        found = {}
        for key, value, place in self._rows(self._queries.get_placed, (ByteArray(keys),)):
            found[key] = value
            self._places[key] = place
        return found

    def _waiting(self) -> list[Rows]:
        """The rows that wait in runs."""
        if self._runs is None:
            if self._listed is None:
                self._listed = self._rows(self._queries.runs, ()) if self._queries.packed else []
            self._runs = self._log.rows(self._listed, self._fetch_runs) if self._listed else []
        return self._runs

    def _fetch_runs(self, names: list[bytes]) -> list[tuple[bytes, bytes]]:
        return self._rows(self._queries.get_each, (ByteArray(names),))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._stored(start, stop)
        if row_runs.touches(start, stop) and (waiting := self._waiting()):
            return row_runs.laid_over(found, waiting, start, stop)
        return found

    def _stored(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What the table has, without what only packs others."""
        if self._has_marks(start, stop):
            found = self._merged(start, stop)
        else:
            found = self._plain(start, stop)
            if self._queries.packed and hides(start, stop):
                found = (entry for entry in found if not is_bundle(entry[0]))
        if self._queries.packed and row_runs.hides(start, stop):
            return (entry for entry in found if not row_runs.is_run(entry[0]))
        return found

    def _plain(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries, _, most = self._ahead.get((start, stop), ([], [], 0))
        complete = _is_last(entries, most)
        yield from entries
        most = max(_FIRST_ROWS, 4 * len(entries))
        while not complete:
            if entries:
                start = entries[-1][0] + b"\x00"
            entries = self._rows(self._queries.page, (start, stop, most))
            complete = _is_last(entries, most)
            yield from entries
            most = min(4 * most, _MOST_ROWS)

    def _merged(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        merge = Merge(start, stop)
        entries, bundles, most = self._ahead.get((start, stop), ([], [], 0))
        merge.add_rows(entries, complete=_is_last(entries, most))
        merge.add_bundles(bundles, most)
        most = max(_FIRST_ROWS, min(4 * most, _MOST_ROWS))
        while True:
            yield from merge.take()
            rows_wanted, bundles_wanted = merge.wanted(most)
            if not rows_wanted and not bundles_wanted:
                return
            rows_found, bundles_found = self._fetch(rows_wanted, bundles_wanted)
            for page in rows_found:
                merge.add_rows(page, complete=_is_last(page, most))
            for page in bundles_found:
                merge.add_bundles(page, most)
            most = min(4 * most, _MOST_ROWS)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        if not ranges:
            return
        marked = [part for part in ranges if self._has_marks(*part[:2])]
        wanted = [(*bundle_range(start, stop), most) for start, stop, most in marked]
        pages, bundle_pages = self._fetch(ranges, wanted)
        bundles = dict(zip(marked, bundle_pages, strict=True))
        for part, page in zip(ranges, pages, strict=True):
            self._ahead[part[:2]] = (page, bundles.get(part, []), part[2])

    def _has_marks(self, start: bytes, stop: bytes) -> bool:
        return self._queries.packed and touches(start, stop)

    def _fetch(self, rows: Sequence[Range], bundles: Sequence[Range]) -> tuple[list[Entries], list[Entries]]:
        """Pages of rows and pages of bundles, in one round trip."""
        if bundles:
            found = self._rows(self._queries.both, (*arrays(rows), *arrays(bundles)), listing=True)
        else:
            found = self._rows(self._queries.pages, arrays(rows), listing=True)
        row_pages: list[Entries] = [[] for _ in rows]
        bundle_pages: list[Entries] = [[] for _ in bundles]
        for number, key, value in found:
            page = row_pages[number - 1] if number > 0 else bundle_pages[-number - 1]
            page.append((key, value))
        for page in (*row_pages, *bundle_pages):
            page.sort()
        return row_pages, bundle_pages

    def _rows(self, query: str, parameters: Sequence[Any], *, listing: bool = False) -> list[Any]:
        """The rows of a statement; with ``listing``, the runs that there are come in the same round trip."""

        def ask(session: Session) -> list[Any]:
            listed = session.send(self._queries.runs) if listing else None
            found = session.rows(query, parameters)
            if listed is not None:
                self._listed = listed.fetchall()
            return found

        def begin(session: Session) -> list[Any]:
            session.send("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return ask(session)

        listing = listing and self._queries.packed and self._listed is None
        if self._session is None:
            self._session, found = self._sessions.hold(begin)
            return found
        try:
            return ask(self._session)
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


def _is_last(entries: Entries, most: int) -> bool:
    """Whether a page ends because there is no more."""
    return len(entries) < most and sum(len(value) for _, value in entries) < _PAGE
