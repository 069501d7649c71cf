"""Connections to PostgreSQL for a store: made when they are needed, kept for the next one, never shared.

A connection is always in pipeline mode: statements leave without waiting for the answers of those before
them, and the program waits only where it reads a result. So a step needs a few round trips, however many
statements it has. A connection that is lost is replaced, for as long as `Sessions.patience` says.
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
    # A host that vanishes says no word: without these, a connection to it stands for hours.
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    # Of several hosts the one that takes writes; of a standby that was promoted, the new one.
    "target_session_attrs": "read-write",
}
_SETTINGS = {
    # Plans are made once, for any parameters, and always by the primary key: what a planner thinks of a
    # table depends on when it was last analysed, and there is no other good plan for these statements.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "jit": "off",
    # What an administrator has set for people who forget their sessions: a step may read for a while, and the
    # driver's lock is a session that does nothing.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
_SET = "SELECT set_config($1, $2, false) WHERE current_setting($1, true) IS NOT NULL"  # not all have all
# A server may run without waiting for its disk; a store must not. Stricter settings than "on" stay.
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
        "57P01",  # the server shuts down, or somebody has ended this connection
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
    """Byte strings on their way to the server as one ``bytea[]``."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[bytes]) -> None:
        self.items = items


class PlaceArray(ByteArray):
    """Places of rows as a reading gave them (``ctid``), on their way back as one ``tid[]``."""


_length = struct.Struct(">i").pack
_BYTEA, _BYTEA_ARRAY = 17, 1001
_TID, _TID_ARRAY = 27, 1010


class _ByteArrayDumper(Dumper):
    """The binary form, written down at once: psycopg would call a dumper for every key."""

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
    """How often the program has waited for an answer: round trips."""


class Session:
    """One connection."""

    def __init__(self, conninfo: dict[str, Any], traffic: Traffic) -> None:
        connection: Connection[TupleRow] = psycopg.connect(**conninfo, autocommit=True)
        connection.prepare_threshold = 0
        connection.prepared_max = _STATEMENTS
        connection.adapters.register_dumper(ByteArray, _ByteArrayDumper)
        connection.adapters.register_dumper(PlaceArray, _PlaceArrayDumper)
        self._connection = connection
        self.version = connection.info.server_version
        """Of the server, as a number: 15.3 is 150003."""
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
        """Sends a statement; its error comes with a later one that is waited for."""
        self._traffic.statements += 1
        cursor = RawCursor(self._connection)
        cursor.execute(query.encode(), parameters or None, binary=True)
        self._drain()
        return cursor

    def _drain(self) -> None:
        """Waits until all of a statement has left: the driver, when it comes to wait for the answers of a
        pipeline, does not look whether the end of a large one is still here, and would wait forever."""
        connection = self._connection.pgconn
        if not connection.flush():
            return
        poll = select.poll()
        poll.register(connection.socket, select.POLLIN | select.POLLOUT)
        while connection.flush():
            for _, events in poll.poll():
                if events & ~select.POLLOUT:  # answers to what came before: they must not hold up the server
                    connection.consume_input()

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Sends a statement and waits for its rows, and for everything that was sent before."""
        cursor = self.send(query, parameters)
        self.sync()
        return cursor.fetchall()

    def answer(self, cursor: RawCursor[TupleRow] | None) -> list[Any]:
        """The rows of a statement that was sent, if one was; waits for them, unless somebody has since."""
        if cursor is None:
            return []
        if cursor.pgresult is None:
            self.sync()
        return cursor.fetchall()

    def sync(self) -> None:
        """Waits for everything that was sent."""
        self._traffic.waits += 1
        self._pipeline.sync()

    def plainly(self, query: str) -> None:
        """Runs a statement that takes no pipeline, such as VACUUM."""
        self._mode.__exit__(None, None, None)
        self._connection.execute(query.encode())
        self._mode = self._connection.pipeline()
        self._pipeline = self._mode.__enter__()

    def close(self) -> None:
        """Lets go of the connection, in whatever state it is."""
        with suppress(psycopg.Error):
            self._connection.close()
        with suppress(psycopg.Error):
            self._mode.__exit__(None, None, None)  # only now: it would wait for the server otherwise


class Sessions:
    """The connections of one process to one database.

    As many as there are threads that use the store in the same moment; they stay open for the next use.
    A forked process starts with none: it leaves its parent's alone.
    """

    def __init__(self, url: str, *, name: str, patience: float, first_patience: float) -> None:
        self._secrets = secrets_of(url)
        self.name = name
        """How messages call the store."""
        self._patience = patience
        self._first_patience = first_patience
        self._reached = False
        self.traffic = Traffic()
        self.on_connect: Callable[[], None] = lambda: None
        """Called when a connection was made: perhaps others were lost."""
        try:
            self._conninfo: dict[str, Any] = {**_DEFAULTS, **conninfo_to_dict(url)}
        except psycopg.Error as error:
            raise StoreError(f"{name} is no address of PostgreSQL: {self._hidden(error)}") from None
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
        """Takes a connection back, which has no transaction open."""
        with self._lock:
            self._idle.append(session)

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        if os.getpid() == self._pid:
            with self._lock:
                idle, self._idle = self._idle, []
            for session in idle:
                session.close()

    def run(self, work: Callable[[Session], T]) -> T:
        """Does some work on a connection; where that is lost, does it from its beginning on another one."""
        session, found = self.hold(work)
        self.give(session)
        return found

    def hold(self, work: Callable[[Session], T]) -> tuple[Session, T]:
        """As `run`, but the connection remains the caller's."""
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
                self.close()  # what was kept is no better than the one that was lost
                now = time.monotonic()
                if end is None:
                    end = now + (self._patience if self._reached else self._first_patience)
                if now + wait > end:
                    raise self.explained(error) from None
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            except BaseException:
                if session is not None:
                    session.close()  # with it goes the transaction; that is rare, and sure
                raise

    def explained(self, error: psycopg.Error) -> StoreError:
        """What PostgreSQL says, without passwords, and what to do about it."""
        text = self._hidden(error)
        code = error.sqlstate or ""
        if code.startswith("53") and code != "53300":
            advice = "the server has no room left. Nothing of this write is there; make room and run again"
        elif code == "53300" or "too many" in text or "connection slots" in text:
            advice = "each worker process keeps one connection: raise max_connections, or use fewer slots"
        elif code == "42501" or "permission denied" in text:
            advice = "give this user the right to make and use a schema of its own"
        elif code in ("3F000", "42P01"):
            advice = "its tables are gone: somebody has removed the schema, or a part of it"
        elif any(word in text for word in _NEVER):
            advice = "look at the user, the password and the database in the URL"
        elif _may_pass(error):
            advice = "the server cannot be reached; run again when it can: nothing is lost"
        else:
            advice = "the statement was refused"
        return StoreError(f"{self.name}: {advice} ({text})")

    def _hidden(self, error: BaseException) -> str:
        return " ".join(hide(error, self._secrets).split())


def _may_pass(error: psycopg.Error) -> bool:
    """Whether another connection, a little later, may do better."""
    code = error.sqlstate
    if code is not None:
        return code in _AGAIN or code.startswith("08")
    if isinstance(error, psycopg.OperationalError):
        return not any(word in str(error) for word in _NEVER)
    return False


_parents: list[Session] = []  # connections of the process that this one was forked from: not ours to close


Entry = TypeVar("Entry", bound=tuple[bytes, ...])


def chunks(items: Iterable[Entry], most: int) -> Iterable[list[Entry]]:
    """Cuts entries into runs of about ``most`` bytes; one that is larger stands alone.

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
