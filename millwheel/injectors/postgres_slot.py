"""A replication slot of PostgreSQL, and the initial copy of its tables.

What makes the copy and the changes one sequence is the slot's own snapshot. It ends with the connection that
made the slot, and a copy may have to be read twice, so it is written to tables in the schema ``millwheel``:

1. A row of ``millwheel.slots`` names the slot as being made, and for whom. *Crash*: the next driver finds it,
   and begins again.
2. The slot is made, with its snapshot. *Crash*: the same; the slot is dropped first.
3. One transaction, in that snapshot, copies the tables and marks the row as ready. *Crash before its commit*:
   the same. *After*: the copy is there, the slot keeps what came since.
4. Epochs read the copy, then the slot. What an epoch has read is given up after its commit. *Crash between*:
   the next driver gives it up.
5. The copy is dropped once all of it is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from millwheel.errors import InputError
from millwheel.model.secrets import hide, secrets_of

SCHEMA = "millwheel"
PATIENCE = 30.0  # seconds that another process may use the slot: a task of a driver that was killed
_BETWEEN = 0.1
_MAKE = f"""
    CREATE SCHEMA IF NOT EXISTS {SCHEMA};
    CREATE TABLE IF NOT EXISTS {SCHEMA}.slots (
        slot text PRIMARY KEY, origin text NOT NULL, ready boolean NOT NULL,
        position bigint, taken_at bigint, rows bigint[], tables text[]
    )
"""
_SESSION = "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=postgres -c bytea_output=hex"


class Copied(NamedTuple):
    """The copy that a stream of changes begins with."""

    position: int
    """Where the changes begin."""
    taken_at: int
    tables: list[str]
    rows: list[int]
    """Of each table."""


class Slot:
    """A slot, as one process uses it."""

    def __init__(self, url: str, publication: str, name: str) -> None:
        self._url = url
        self._publication = publication
        self.name = name
        self._connection: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, (self._url, self._publication, self.name)

    def close(self) -> None:
        """Lets go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection of this process; its errors have advice and no passwords."""
        import psycopg

        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._url, connect_timeout=10, options=_SESSION, autocommit=True
                )
            yield self._connection
        except psycopg.Error as error:
            raise self._explained(error) from None

    def _explained(self, error: Any) -> InputError:
        text = hide(error, secrets_of(self._url)).strip()
        state = getattr(error, "sqlstate", None) or ""
        advice = "see that the server is there, and run again"
        if state == "42501" or "permission denied" in text or "must be superuser or replication" in text:
            advice = (
                "the role needs the attribute REPLICATION, SELECT on the tables and CREATE on the database: "
                "ALTER ROLE ... REPLICATION; GRANT CREATE ON DATABASE ...; the copy is in the schema "
                f"{SCHEMA}"
            )
        elif "all replication slots are in use" in text:
            advice = "raise max_replication_slots, or drop slots that nobody reads (pg_replication_slots)"
        elif state == "55006":
            advice = "another process reads the slot: stop it (pg_replication_slots.active_pid)"
        elif "can no longer get changes" in text or "no longer be" in text:
            advice = "raise max_slot_wal_keep_size; changes are lost: begin with a new store"
        return InputError(f"{text}: {advice}")

    def check(self) -> dict[str, list[str]]:
        """Return the published tables with their primary keys; raises if one is invalid."""
        with self.connection() as connection:
            (level,) = connection.execute("SHOW wal_level").fetchone()
            if level != "logical":
                raise InputError(
                    f"wal_level is {level!r}, and changes are there only with 'logical': ALTER SYSTEM "
                    "SET wal_level "
                    "= logical, and restart the server"
                )
            name = self._publication
            if not connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)).fetchone():
                raise InputError(
                    f"there is no publication {name!r} in this database: CREATE PUBLICATION {name} FOR "
                    "TABLE ..."
                )
            found = connection.execute(_TABLES, (name, SCHEMA)).fetchall()
        if not found:
            raise InputError(f"the publication {name!r} has no table: ALTER PUBLICATION {name} ADD TABLE ...")
        bare = [table for table, keys, _ in found if not keys]
        if bare:
            raise InputError(
                f"the table {bare[0]} has no primary key, so that its rows have no names: ALTER TABLE "
                f"{bare[0]} ADD "
                "PRIMARY KEY (...), or take it out of the publication"
            )
        return {table: list(keys) for table, keys, _ in found}

    def find(self, origin: str) -> Copied | None:
        """Return the copy that belongs to the slot; None: it is to be made."""
        with self.connection() as connection:
            if not connection.execute(f"SELECT to_regclass('{SCHEMA}.slots')").fetchone()[0]:
                connection.execute(_MAKE)
            row = connection.execute(
                f"SELECT origin, ready, position, taken_at, tables, rows FROM {SCHEMA}.slots WHERE slot = %s",
                (self.name,),
            ).fetchone()
            slot = connection.execute(
                "SELECT plugin, database = current_database(), wal_status FROM pg_replication_slots "
                "WHERE slot_name = %s",
                (self.name,),
            ).fetchone()
        if row is not None and row[0] != origin:
            raise InputError(
                f"the slot {self.name!r} belongs to another pipeline or store: give this one another "
                "slot=, or "
                f"drop that one (pg_drop_replication_slot, DELETE FROM {SCHEMA}.slots)"
            )
        if slot is not None and (row is None or slot[:2] != ("pgoutput", True)):
            raise InputError(
                f"there is a slot {self.name!r} that another program made: give this one another slot=, "
                "or drop it "
                f"(SELECT pg_drop_replication_slot('{self.name}'))"
            )
        if slot is not None and slot[2] == "lost":
            raise InputError(
                f"the server has removed what the slot {self.name!r} was to keep "
                "(max_slot_wal_keep_size), so that "
                "changes are lost: raise it, drop the slot, and begin with a new store"
            )
        if slot is None and row is not None and row[1]:
            raise InputError(
                f"the slot {self.name!r} is gone, and with it the changes since it was last read: begin "
                "with a new "
                f"store, which copies the tables anew, and DELETE FROM {SCHEMA}.slots WHERE slot = "
                f"'{self.name}'"
            )
        return Copied(row[2], row[3], row[4], row[5]) if row is not None and row[1] else None

    def make(self, origin: str, tables: list[str]) -> Copied:
        """Makes the slot, and the copy of the tables as they were at its beginning."""
        import psycopg

        with self.connection() as connection:
            connection.execute(
                f"INSERT INTO {SCHEMA}.slots (slot, origin, ready) VALUES (%s, %s, false) "
                "ON CONFLICT (slot) DO NOTHING",
                (self.name, origin),
            )
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                (self.name,),
            )
            with psycopg.connect(
                self._url, connect_timeout=10, replication="database", autocommit=True
            ) as walsender:
                made = walsender.pgconn.exec_(
                    f'CREATE_REPLICATION_SLOT "{self.name}" LOGICAL pgoutput EXPORT_SNAPSHOT'.encode()
                )
                if not made.ntuples:
                    raise psycopg.OperationalError(made.error_message.decode(errors="replace").strip())
                position, snapshot = ((made.get_value(0, at) or b"").decode() for at in (1, 2))
                with connection.transaction():  # the snapshot lasts until the walsender's next command
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                    return self.copy(connection, lsn(position), tables)

    def copy(self, connection: Any, position: int, tables: list[str]) -> Copied:
        """Copies the tables in a transaction, and marks the slot as ready in it."""
        (taken_at,) = connection.execute("SELECT (extract(epoch FROM now()) * 1000000)::bigint").fetchone()
        rows = []
        for number, table in enumerate(tables):
            copy = self.copy_of(number)
            connection.execute(f"DROP TABLE IF EXISTS {copy}")
            connection.execute(f"CREATE TABLE {copy} AS {self._published(connection, table)}")
            connection.execute(f"ALTER TABLE {copy} ADD PRIMARY KEY (millwheel_row)")
            rows.append(int(connection.execute(f"SELECT count(*) FROM {copy}").fetchone()[0]))
        connection.execute(
            f"UPDATE {SCHEMA}.slots SET ready = true, position = %s, taken_at = %s, tables = %s, rows = %s "
            "WHERE slot = %s",
            (position, taken_at, tables, rows, self.name),
        )
        return Copied(position, taken_at, tables, rows)

    def _published(self, connection: Any, table: str) -> str:
        """Return the query of a table's published columns and rows.

        The rows of tables that inherit from it are their own tables' rows.
        """
        columns, rows, plain = connection.execute(_PUBLISHED, (self._publication, table)).fetchone()
        names = "".join(f", t.{_name(column)}" for column in columns) if columns is not None else ", t.*"
        return (
            f"SELECT row_number() OVER () AS millwheel_row{names} FROM {'ONLY ' if plain else ''}"
            f"{_quoted(table)} t WHERE {rows or 'true'}"
        )

    def unmake(self) -> None:
        """Removes a slot that replaced a lost one, and raises the error of the loss."""
        with self.connection() as connection:
            connection.execute(f"DELETE FROM {SCHEMA}.slots WHERE slot = %s", (self.name,))
            connection.execute("SELECT pg_drop_replication_slot(%s)", (self.name,))
        raise InputError(
            f"the slot {self.name!r} is gone, and with it the changes since it was last read: begin with a "
            "new store, which copies the tables anew"
        )

    def copy_of(self, number: int) -> str:
        """Return the name of the copy of a table, quoted."""
        return f'{SCHEMA}."{self.name}_{number}"'

    def drop_copies(self, count: int) -> None:
        """Drops the copies, which are not read again."""
        with self.connection() as connection:
            for number in range(count):
                connection.execute(f"DROP TABLE IF EXISTS {self.copy_of(number)}")

    def commits(self, most: int) -> tuple[list[tuple[int, int]], bool] | None:
        """Return the commits to read with their changes, and whether these are all.

        None: another process uses the slot.
        """
        with self.connection() as connection:
            try:
                rows = connection.execute(_COMMITS, (self.name, most, self._publication)).fetchall()
                complete = not rows or rows[-1][2] < most
                return [(int(end), int(changes)) for end, changes, _ in rows], complete
            except Exception as error:
                if getattr(error, "sqlstate", None) == "55006":
                    return None
                raise

    def messages(self, end: int) -> Iterator[bytes]:
        """Yield the messages of the slot up to a position; nothing is given up."""
        with self.connection() as connection, connection.cursor(name="changes", withhold=True) as cursor:

            def ask() -> Any:
                cursor.execute(_MESSAGES, (self.name, text_of(end), self._publication))
                return cursor

            for (data,) in self._patiently(ask):
                yield bytes(data)

    def flushed(self) -> int:
        """Return how far the server's log is."""
        with self.connection() as connection:
            (found,) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        return lsn(found)

    def advance(self, position: int) -> None:
        """Gives up what is before a position."""
        arguments = (text_of(position), self.name, text_of(position))
        with self.connection() as connection:
            self._patiently(lambda: connection.execute(_ADVANCE, arguments))

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Retries while another process uses the slot: a task of a killed driver."""
        import psycopg

        end = time.monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > end:
                    raise
                time.sleep(_BETWEEN)
            except psycopg.errors.UndefinedObject:
                raise InputError(
                    f"the slot {self.name!r} is gone, and with it the changes since it was last read: begin "
                    f"with a new store, and DELETE FROM {SCHEMA}.slots WHERE slot = '{self.name}'"
                ) from None


def lsn(text: str) -> int:
    """Return a position of PostgreSQL's log as a number.

    >>> lsn("1/A0"), text_of(lsn("1/A0"))
    (4294967456, '1/A0')
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def text_of(position: int) -> str:
    """Return the inverse of `lsn`."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def _quoted(table: str) -> str:
    schema, _, name = table.partition(".")
    return f"{_name(schema)}.{_name(name)}"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_TABLES = """
    SELECT schemaname || '.' || tablename,
        (SELECT array_agg(attname ORDER BY attnum) FROM pg_attribute a, pg_index i
         WHERE a.attrelid = i.indrelid AND i.indisprimary AND a.attnum = ANY(i.indkey)
         AND i.indrelid = to_regclass(quote_ident(schemaname) || '.' || quote_ident(tablename)))::text[], 0
    FROM pg_publication_tables WHERE pubname = %s AND schemaname <> %s ORDER BY 1
"""
_PUBLISHED = """
    SELECT to_jsonb(p) -> 'attnames', to_jsonb(p) ->> 'rowfilter', c.relkind = 'r'
    FROM pg_publication_tables p, pg_class c
    WHERE p.pubname = %s AND p.schemaname || '.' || p.tablename = %s
    AND c.oid = to_regclass(quote_ident(p.schemaname) || '.' || quote_ident(p.tablename))
"""
"""Columns and rows that a publication has of a table: none of both before PostgreSQL 15."""
_COMMITS = """
    SELECT lsn - '0/0'::pg_lsn, changes, ordinality FROM (
        SELECT lsn, ordinality, get_byte(data, 0) AS kind,
            count(*) FILTER (WHERE get_byte(data, 0) IN (68, 73, 84, 85))
                OVER (ORDER BY ordinality) AS changes
        FROM pg_logical_slot_peek_binary_changes(
            %s, NULL, %s, 'proto_version', '1', 'publication_names', %s) WITH ORDINALITY
    ) AS messages WHERE kind = 67 ORDER BY 1
"""
_ADVANCE = """
    SELECT pg_replication_slot_advance(slot_name, %s::pg_lsn) FROM pg_replication_slots
    WHERE slot_name = %s AND confirmed_flush_lsn < %s::pg_lsn
"""
_MESSAGES = """
    SELECT data FROM pg_logical_slot_peek_binary_changes(
        %s, %s, NULL, 'proto_version', '1', 'publication_names', %s)
"""
