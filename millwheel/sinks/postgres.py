"""Records as rows of a PostgreSQL table."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.extras import import_extra
from millwheel.model.record import Record
from millwheel.model.secrets import hide, percent_encoded, secrets_of, without_secrets
from millwheel.model.sink import Sink
from millwheel.sinks.json_values import json_text, to_plain

MARKERS = "millwheel_epochs"
_MAKE_MARKERS = f"""
    CREATE TABLE IF NOT EXISTS {MARKERS} (
        origin text, sink text, shard bigint, epoch bigint NOT NULL, PRIMARY KEY (origin, sink, shard)
    )
"""
_MARK = f"""
    INSERT INTO {MARKERS} AS m (origin, sink, shard, epoch) VALUES (%s, %s, %s, %s)
    ON CONFLICT (origin, sink, shard) DO UPDATE SET epoch = EXCLUDED.epoch WHERE m.epoch < EXCLUDED.epoch
"""
_LOCK = 0x6D696C6C  # of a database, while tables are created: two drivers may do so at once

_PATIENCE = 30.0  # seconds to wait for a server before the task fails, and Spark retries it
_FIRST_WAIT = 0.1

Convert = Callable[[Record], Any]


class Postgres(Sink):
    """Inserts records into a table, exactly once.

    ``columns`` names the columns to fill: ``key`` and ``timestamp`` are the record's, ``value`` is the
    whole value, any other one the field of that name of a value that is a dict. By default they are those
    three, and a missing table is created: ``key text, timestamp timestamptz, value jsonb``.
    A column for the timestamp has a time type, or is a number (microseconds since 1970).

    With ``upsert_on`` (columns with a unique index), a row replaces the one with the same values there,
    so the table holds the newest row of each.

    The rows of a shard and its epoch are one transaction: the table ``millwheel_epochs`` has the last epoch
    of each shard. An epoch that is written again changes nothing. The rows of an epoch's shards appear
    one shard after the other, and before the epoch is committed. An unavailable server is waited for, for
    ``patience`` seconds, before the task fails.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        upsert_on: Sequence[str] | str = (),
        patience: float = _PATIENCE,
    ) -> None:
        try:
            self._url = percent_encoded(url)
        except ValueError as error:
            raise MillWheelError(f"Postgres({without_secrets(url)!r}): {error}") from None
        self._table = table
        self._make = columns is None
        self._columns = list(columns or ("key", "timestamp", "value"))
        self._upsert_on = [upsert_on] if isinstance(upsert_on, str) else list(upsert_on)
        self._patience = patience
        self._origin = ""
        self._types: dict[str, str] = {}
        strange = [name for name in self._upsert_on if name not in self._columns]
        if strange:
            raise MillWheelError(
                f"Postgres: upsert_on names {', '.join(strange)}, which is not one of the columns"
            )

    def __repr__(self) -> str:
        return f"Postgres({without_secrets(self._url)!r}, {self._table!r})"

    def open(self) -> None:
        with self._transaction() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            cursor.execute(_MAKE_MARKERS)
            if self._make:
                cursor.execute(self._creation())
            cursor.execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                (_quoted(self._table),),
            )
            types = dict(cursor.fetchall())
        if not types:
            raise MillWheelError(
                f"there is no table {self._table!r} in {without_secrets(self._url)}: create it"
            )
        missing = [name for name in self._columns if name not in types]
        if missing:
            raise MillWheelError(
                f"the table {self._table!r} has no column {', '.join(missing)}; it has {', '.join(types)}"
            )
        self._types = {name: types[name] for name in self._columns}

    def _creation(self) -> str:
        unique = f", UNIQUE ({_names(self._upsert_on)})" if self._upsert_on else ""
        columns = f"key text NOT NULL, timestamp timestamptz NOT NULL, value jsonb{unique}"
        return f"CREATE TABLE IF NOT EXISTS {_quoted(self._table)} ({columns})"

    def begin(self, origin: str, epoch: int) -> None:
        self._origin = origin

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        rows = self._rows(records)
        end = time.monotonic() + self._patience
        wait = _FIRST_WAIT
        while True:
            try:
                return self._insert(epoch, shard, rows)
            except _Unreachable as error:
                # The transaction may have been committed nevertheless: its marker shows it.
                if time.monotonic() + wait > end:
                    raise MillWheelError(str(error)) from None
                time.sleep(wait)
                wait *= 2

    def _insert(self, epoch: int, shard: int, rows: list[list[Any]]) -> None:
        with self._transaction() as cursor:
            cursor.execute(_MARK, (self._origin, self._table, shard, epoch))
            if cursor.rowcount == 0:
                return  # an earlier attempt was committed
            if not self._upsert_on:
                self._copy(cursor, _quoted(self._table), rows)
                return
            names = _names(self._columns)
            cursor.execute(
                f"CREATE TEMP TABLE millwheel_rows ON COMMIT DROP AS "
                f"SELECT {names} FROM {_quoted(self._table)} WITH NO DATA"
            )
            places = [self._columns.index(name) for name in self._upsert_on]
            newest = {tuple(row[place] for place in places): row for row in rows}
            self._copy(cursor, "millwheel_rows", list(newest.values()))
            others = [name for name in self._columns if name not in self._upsert_on]
            changes = ", ".join(f"{_quoted(name)} = EXCLUDED.{_quoted(name)}" for name in others)
            action = f"UPDATE SET {changes}" if changes else "NOTHING"
            cursor.execute(
                f"INSERT INTO {_quoted(self._table)} ({names}) SELECT {names} FROM millwheel_rows "
                f"ON CONFLICT ({_names(self._upsert_on)}) DO {action}"
            )

    def _copy(self, cursor: Any, table: str, rows: list[list[Any]]) -> None:
        with cursor.copy(f"COPY {table} ({_names(self._columns)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def _rows(self, records: Sequence[Record]) -> list[list[Any]]:
        converts = [_convert(name, self._types[name]) for name in self._columns]
        try:
            return [[convert(record) for convert in converts] for record in records]
        except (KeyError, TypeError, AttributeError) as error:
            raise MillWheelError(
                f"a value has no field for a column of {self._table!r} ({error}): columns are "
                "fields of values that are dicts, besides key, timestamp and value"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A cursor in a transaction on this process's connection; hides the password."""
        psycopg = import_extra("Postgres needs", "postgres", "psycopg")
        connection = connections.get(self._url)
        try:
            if connection is None or connection.closed:
                connection = connections[self._url] = psycopg.connect(self._url, connect_timeout=10)
            with connection.transaction(), connection.cursor() as cursor:
                yield cursor
        except psycopg.Error as error:
            lost = isinstance(error, psycopg.OperationalError)
            if connection is not None and lost:
                connection.close()
            text = f"{self!r}: {hide(error, secrets_of(self._url)).strip()}"
            raise _Unreachable(text) if lost else MillWheelError(text) from None


class _Unreachable(MillWheelError):
    """The server is unavailable, and may come back."""


connections: dict[str, Any] = {}


def _convert(column: str, kind: str) -> Convert:
    """The function that fills a column from a record."""
    if column == "key":
        return lambda record: _clean(record.key)
    if column == "timestamp":
        return (lambda record: to_moment(record.timestamp)) if "time" in kind else lambda r: r.timestamp
    in_json = kind in ("json", "jsonb")
    if column == "value":
        return lambda record: _cell(record.value, in_json)
    return lambda record: _cell(record.value[column], in_json)


def _cell(value: Any, in_json: bool) -> Any:
    if in_json:
        return json_text(_clean(to_plain(value)))
    return _clean(value) if isinstance(value, str) else value


def _clean(value: Any) -> Any:
    """Text for PostgreSQL: NUL and lone surrogates become U+FFFD."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def to_moment(timestamp: int) -> Any:
    """A time for PostgreSQL; one outside of its calendar is infinite."""
    try:
        return _UNIX_EPOCH + datetime.timedelta(microseconds=timestamp)
    except OverflowError:
        return "infinity" if timestamp > 0 else "-infinity"


_UNIX_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def _quoted(name: str) -> str:
    """The quoted name of a table or a column, with its schema if it has one."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(_quoted, columns))
