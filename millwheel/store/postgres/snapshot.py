"""Snapshots of a store in PostgreSQL: a transaction, and pages of rows.

Bundles of marks are unpacked here, and rows in runs replace those in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from millwheel.store.base import Range, SnapshotLost
from millwheel.store.keyspace import ROW, after
from millwheel.store.postgres import row_runs
from millwheel.store.postgres.packing import Packing, look_up, visible
from millwheel.store.postgres.queries import PAGE, Queries, arrays
from millwheel.store.postgres.row_runs import Listed, Rows
from millwheel.store.postgres.sessions import ByteArray, Session, Sessions
from millwheel.store.postgres.timer_bundles import Entries, Merge, bundle_range, touches

FIRST_ROWS = 256  # of a scan: most end early
_MOST_ROWS = 1 << 16
_ROWS = (ROW, after(ROW))  # where the rows of keys are
MOST_PLACES = 200_000  # of rows that were read since the last write


class PostgresSnapshot:
    """A reading transaction, begun with its first statement.

    Records in ``places`` the locations of the rows of keys that it reads, for the write that follows.
    """

    def __init__(
        self, sessions: Sessions, queries: Queries, places: dict[bytes, bytes], packing: Packing | None
    ) -> None:
        self._sessions = sessions
        self._queries = queries
        self._places = places
        self._packing = packing
        self._listed: Listed | None = None
        self._runs: list[Rows] | None = None
        self.session: Session | None = None
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
        if not _ROWS[0] <= min(keys) <= max(keys) < _ROWS[1] or len(self._places) > MOST_PLACES:
            return look_up(self._rows, self._queries, keys)
        found = {}
        for key, value, place in self._rows(self._queries.get_placed, (ByteArray(keys),)):
            found[key] = value
            self._places[key] = place
        return found

    def _waiting(self) -> list[Rows]:
        """The rows in runs."""
        if self._runs is None:
            if self._listed is None:
                self._listed = self._rows(self._queries.runs, ()) if self._packing is not None else []
            self._runs = []
            if self._packing is not None and self._listed:
                self._runs = self._packing.runs(self._listed, self._rows, self._queries)
        return self._runs

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._stored(start, stop)
        if row_runs.touches(start, stop) and (waiting := self._waiting()):
            return row_runs.laid_over(found, waiting, start, stop)
        return found

    def _stored(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries of the table, without bundles and runs."""
        read = self._merged if self._has_marks(start, stop) else self._plain
        found = read(start, stop)
        return found if self._packing is None else visible(found, start, stop)

    def _plain(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries, _, most = self._ahead.get((start, stop), ([], [], 0))
        complete = _is_last(entries, most)
        yield from entries
        most = max(FIRST_ROWS, 4 * len(entries))
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
        most = max(FIRST_ROWS, min(4 * most, _MOST_ROWS))
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
        return self._packing is not None and touches(start, stop)

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
        """The rows of a statement; with ``listing``, fetches the list of runs with it."""

        def ask(session: Session) -> list[Any]:
            listed = session.send(self._queries.runs) if listing else None
            found = session.rows(query, parameters)
            if listed is not None:
                self._listed = listed.fetchall()
            return found

        def begin(session: Session) -> list[Any]:
            session.send("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return ask(session)

        listing = listing and self._packing is not None and self._listed is None
        if self.session is None:
            self.session, found = self._sessions.hold(begin)
            return found
        try:
            return ask(self.session)
        except psycopg.Error as error:
            self.session.close()
            raise SnapshotLost(str(self._sessions.explained(error))) from None

    def close(self) -> None:
        """Ends the transaction, without waiting."""
        session, self.session = self.session, None
        if session is not None:
            try:
                session.send("COMMIT")
            except psycopg.Error:
                session.close()
            else:
                self._sessions.give(session)


def _is_last(entries: Entries, most: int) -> bool:
    """Whether a page is the last one."""
    return len(entries) < most and sum(len(value) for _, value in entries) < PAGE
