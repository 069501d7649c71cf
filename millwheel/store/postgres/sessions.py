"""Connections to PostgreSQL for a store: a pool, never shared at the same time.

A connection is always in pipeline mode: statements are sent without waiting for the answers of those before
them, and the program waits only when it reads a result. So a step needs a few round trips, however many
statements it has. A lost connection is replaced, within the time of `Sessions.patience`.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import Connection, RawCursor
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.rows import TupleRow

from millwheel.errors import StoreError
from millwheel.model.secrets import hide, secrets_of

T = TypeVar("T")

_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0
_DEFAULTS = {
    "application_name": "millwheel",
    "connect_timeout": 10,
    # A host that vanishes sends nothing: without these, a connection to it lasts for hours.
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    # Of several hosts the one that accepts writes; after a promotion, the new primary.
    "target_session_attrs": "read-write",
}
_SETTINGS = {
    # Plans are made once, for any parameters, and always by the primary key: the planner's estimates depend
    # on when a table was last analysed, and there is no other good plan for these statements.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
    # Defaults that administrators set for forgotten sessions: a step may read for a while, and the
    # driver's lock is an idle session.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_SET = (
    "SELECT set_config($1, $2, false) WHERE current_setting($1, true) IS NOT NULL"  # some servers lack some
)


# A server may be configured not to wait for its disk; a store must. Stricter settings than "on" stay.
_DURABLE = """
    SELECT set_config('synchronous_commit', CASE level WHEN 'off' THEN 'on' ELSE level END, false)
    FROM current_setting('synchronous_commit') AS level
"""
_STATEMENTS = 1000  # prepared ones of a connection: a few for each shard

_AGAIN = frozenset(
    {
        "25006",  # read only: this server has become a standby, or is one
        "25P03",  # idle in transaction: this process was stopped for a while
        "40001",  # serialization failure
        "40P01",  # deadlock
        "53300",  # too many connections
        "55P03",  # lock not available
        "57P01",  # the server shuts down, or this connection was terminated
        "57P02",  # the server crashed
        "57P03",  # the server cannot take connections yet
    }
)
_NEVER = (
    "authentication failed",
    "does not exist",
    "no password supplied",
    "pg_hba.conf",
    "permission denied",
)


class ByteArray:
    """Byte strings sent to the server as one ``bytea[]``."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[bytes]) -> None:
        self.items = items


class PlaceArray(ByteArray):
    """Locations of rows (``ctid``) of a read, sent back as one ``tid[]``."""


_length = struct.Struct(">i").pack
_BYTEA, _BYTEA_ARRAY = 17, 1001
_TID, _TID_ARRAY = 27, 1010


class _ByteArrayDumper(Dumper):
    """The binary form, built in one call: psycopg would call a dumper for every key."""

    format = Format.BINARY
    oid = _BYTEA_ARRAY
    item = _BYTEA

    def dump(self, obj: ByteArray) -> bytes:
        parts = [struct.pack(">iiIii", 1, 0, self.item, len(obj.items), 1)]
        for item in obj.items:
            parts += (_length(len(item)), item)
        return b"".join(parts)


class _PlaceArrayDumper(_ByteArrayDumper):
    oid = _TID_ARRAY
    item = _TID


@dataclass
class Traffic:
    """What a process has sent to a server."""

    connections: int = 0
    statements: int = 0
    waits: int = 0
    """The number of round trips."""


class Session:
    """One connection."""

    def __init__(self, conninfo: dict[str, Any], traffic: Traffic) -> None:
        connection: Connection[TupleRow] = psycopg.connect(**conninfo, autocommit=True)
        connection.prepare_threshold = 0
        connection.prepared_max = _STATEMENTS
        connection.adapters.register_dumper(ByteArray, _ByteArrayDumper)
        connection.adapters.register_dumper(PlaceArray, _PlaceArrayDumper)
        self.connection = connection
        self.version = connection.info.server_version
        """The server's version as a number: 15.3 is 150003."""
        self._mode = connection.pipeline()
        self._pipeline = self._mode.__enter__()
        self._traffic = traffic
        traffic.connections += 1
        try:
            for name, value in _SETTINGS.items():
                self.send(_SET, (name, value))
            self.send(_DURABLE)
            self.sync()
        except BaseException:
            self.close()
            raise

    def send(self, query: str, parameters: Sequence[Any] = ()) -> RawCursor[TupleRow]:
        """Sends a statement; its error is raised by a later call that waits."""
        self._traffic.statements += 1
        cursor = RawCursor(self.connection)
        cursor.execute(query.encode(), parameters or None, binary=True)
        self._drain()
        return cursor

    def _drain(self) -> None:
        """Waits until a statement has left this process.

        When it waits for the answers of a pipeline, the driver does not check whether the end of a large one
        was sent, and would wait forever.
        """
        connection = self.connection.pgconn
        if not connection.flush():
            return
        poll = select.poll()
        poll.register(connection.socket, select.POLLIN | select.POLLOUT)
        while connection.flush():
            for _, events in poll.poll():
                if events & ~select.POLLOUT:  # answers to earlier statements: they must not block the server
                    connection.consume_input()

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Sends a statement and waits for its rows, and for all earlier statements."""
        cursor = self.send(query, parameters)
        self.sync()
        return cursor.fetchall()

    def answer(self, cursor: RawCursor[TupleRow] | None) -> list[Any]:
        """The rows of a statement that was sent, if any; waits for them if needed."""
        if cursor is None:
            return []
        if cursor.pgresult is None:
            self.sync()
        return cursor.fetchall()

    def sync(self) -> None:
        """Waits for all statements that were sent."""
        self._traffic.waits += 1
        self._pipeline.sync()

    def plainly(self, query: str) -> None:
        """Runs a statement that cannot be pipelined, such as VACUUM."""
        self._mode.__exit__(None, None, None)
        self.connection.execute(query.encode())
        self._mode = self.connection.pipeline()
        self._pipeline = self._mode.__enter__()

    def close(self) -> None:
        """Closes the connection, in any state."""
        with suppress(psycopg.Error):
            self.connection.close()
        with suppress(psycopg.Error):
            self._mode.__exit__(None, None, None)  # last: otherwise it would wait for the server


class Sessions:
    """The connections of one process to one database.

    One for each thread that uses the store at the same time; they stay open for the next use.
    A forked process starts with none: it does not touch its parent's.
    """

    def __init__(self, url: str, *, name: str, patience: float, first_patience: float) -> None:
        self._secrets = secrets_of(url)
        self.name = name
        """The name of the store in messages."""
        self._patience = patience
        self._first_patience = first_patience
        self._reached = False
        self.traffic = Traffic()
        self.on_connect: Callable[[], None] = lambda: None
        """Called after a connection was made: others may have been lost."""
        try:
            self._conninfo: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(url)}
        except psycopg.Error as error:
            raise StoreError(f"{name} is not an address of PostgreSQL: {self._hidden(error)}") from None
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Session] = []

    def take(self) -> Session:
        """A connection for the caller alone."""
        if os.getpid() != self._pid:
            _parents.extend(self._idle)
            self._start()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        session = Session(self._conninfo, self.traffic)
        self._reached = True
        return session

    def give(self, session: Session) -> None:
        """Takes back a connection, which has no open transaction."""
        with self._lock:
            self._idle.append(session)

    def close(self) -> None:
        """Closes the unused connections."""
        if os.getpid() == self._pid:
            with self._lock:
                idle, self._idle = self._idle, []
            for session in idle:
                session.close()

    def run(self, work: Callable[[Session], T]) -> T:
        """Runs work on a connection; if it is lost, again from the start on another one."""
        session, found = self.hold(work)
        self.give(session)
        return found

    def hold(self, work: Callable[[Session], T]) -> tuple[Session, T]:
        """Like `run`, but the connection remains the caller's."""
        end: float | None = None
        wait = _FIRST_WAIT
        made = self.traffic.connections
        while True:
            session: Session | None = None
            try:
                session = self.take()
                found = work(session)
                if self.traffic.connections != made:
                    self.on_connect()
                return session, found
            except psycopg.Error as error:
                if session is not None:
                    session.close()
                if not _may_pass(error):
                    raise self.explained(error) from None
                self.close()  # the pooled ones are likely lost too
                now = time.monotonic()
                if end is None:
                    end = now + (self._patience if self._reached else self._first_patience)
                if now + wait > end:
                    raise self.explained(error) from None
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            except BaseException:
                if session is not None:
                    session.close()  # it ends the transaction too; rare, and safe
                raise

    def explained(self, error: psycopg.Error) -> StoreError:
        """A PostgreSQL error without passwords, and with advice."""
        text = self._hidden(error)
        code = error.sqlstate or ""
        if code.startswith("53") and code != "53300":
            advice = (
                "the server has no room left. Nothing of this write is stored; free some space and run again"
            )
        elif code == "53300" or "too many" in text or "connection slots" in text:
            advice = "each worker process keeps one connection: raise max_connections, or use fewer slots"
        elif code == "42501" or "permission denied" in text:
            advice = "grant this user the right to create and use a schema of its own"
        elif code in ("3F000", "42P01"):
            advice = "its tables are missing: the schema, or a part of it, was removed"
        elif any(word in text for word in _NEVER):
            advice = "check the user, the password and the database in the URL"
        elif _may_pass(error):
            advice = "the server cannot be reached; run again when it can: nothing is lost"
        else:
            advice = "the statement was refused"
        return StoreError(f"{self.name}: {advice} ({text})")

    def _hidden(self, error: BaseException) -> str:
        return " ".join(hide(error, self._secrets).split())


def _may_pass(error: psycopg.Error) -> bool:
    """Whether a retry on another connection may succeed."""
    code = error.sqlstate
    if code is not None:
        return code in _AGAIN or code.startswith("08")
    if isinstance(error, psycopg.OperationalError):
        return not any(word in str(error) for word in _NEVER)
    return False


_parents: list[Session] = []  # connections of the parent process, which are not closed here


Entry = TypeVar("Entry", bound=tuple[bytes, ...])


def chunks(items: Iterable[Entry], most: int) -> Iterable[list[Entry]]:
    """Splits entries into chunks of at most ``most`` bytes; a larger one is alone.

    >>> [len(chunk) for chunk in chunks([(b"a", b"x" * 6), (b"b", b"x" * 6), (b"c", b"")], 8)]
    [1, 2]
    """
    chunk: list[Entry] = []
    size = 0
    for item in items:
        length = len(item[0]) + len(item[1])
        if chunk and size + length > most:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += length
    if chunk:
        yield chunk
