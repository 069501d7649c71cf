"""The shared store: a schema of PostgreSQL with tables for journal and shards.

It is for clusters whose hosts share no disk. A read is a round trip, so a step announces what it will
read (`Snapshot.prefetch`), and a write is two: the first reads the sequencer, the second makes the changes
and the commit. A shard has one writer at a time, by an advisory lock for the length of the transaction: so
what a guard has read still holds when the write is made, also if it found nothing.

A connection may be lost during a commit, whose result is then unknown. The write is then repeated
from its beginning, its guard included: a guard recognises its own write (see `Shard.write`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import psycopg

from millwheel.errors import StoreError
from millwheel.model.keys import TABLETS
from millwheel.model.secrets import percent_encoded, without_secrets
from millwheel.store.base import Shard, Store
from millwheel.store.postgres.packing import Packing
from millwheel.store.postgres.postgres_shard import PostgresShard
from millwheel.store.postgres.schema import About, make, quoted, read_about, tables
from millwheel.store.postgres.sessions import Session, Sessions, Traffic

DEFAULT_SCHEMA = "millwheel"
_PATIENCE = 60.0  # seconds to wait for a server: a restart, or the promotion of a standby
_FIRST_PATIENCE = 5.0  # before the first connection: most often the URL is wrong
_TAKEOVER = 10.0  # seconds for a terminated connection to disappear


class PostgresStore(Store):
    """The store in a schema of a database.

    The URL is libpq's, with two parameters of the store: ``schema`` (default: ``millwheel``) and
    ``patience`` (seconds to wait for the server, default: 60). With ``existing``, a missing store is not
    made; with ``readonly``, it is not made or upgraded either, and every write is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        shards: int = 1,
        tablets: int = TABLETS,
        existing: bool = False,
        readonly: bool = False,
    ) -> None:
        self._url, ours = _split(url)
        self._schema = ours.get("schema", DEFAULT_SCHEMA)
        name = f"the store {without_secrets(self._url)} (schema {self._schema})"
        patience = _number(name, ours.get("patience", str(_PATIENCE)))
        first = patience if "id" in ours else min(patience, _FIRST_PATIENCE)
        self._name = name
        self.sessions = Sessions(self._url, name=name, patience=patience, first_patience=first)
        """The connections, for other statements than those of the store."""
        self._readonly = readonly
        self._keeper: Session | None = None
        self._keeping = threading.Lock()
        self._owner = ""
        try:
            identity = ours.get("id")
            self._about = self._open(shards, tablets, existing=existing or readonly, identity=identity)
        except BaseException:
            self.close()
            raise
        self.tablets = self._about.tablets
        separator = "&" if "?" in self._url else "?"
        own = "".join(f"&{key}={ours[key]}" for key in ("patience",) if key in ours)
        self.address = f"{self._url}{separator}schema={quote(self._schema)}{own}&id={self._about.identity}"
        self.tables = [f"{quoted(self._schema)}.{table}" for table in tables(self._about.shards)]
        """The qualified names of the tables: the journal's, then one for each shard."""
        found = [
            PostgresShard(
                self.sessions,
                table,
                (self._about.lock, number),
                Packing() if number > 1 else None,
                readonly=readonly,
            )
            for number, table in enumerate(self.tables, start=1)
        ]
        self.journal: Shard = found[0]
        self.shards: Sequence[Shard] = found[1:]
        self.sessions.on_connect = self._keep

    def _open(self, shards: int, tablets: int, *, existing: bool, identity: str | None) -> About:
        upgrade = not self._readonly
        about = self.sessions.run(lambda session: read_about(session, self._schema, upgrade=upgrade))
        if about is None:
            if existing or identity is not None:
                raise StoreError(f"there is no store in {self._name[len('the store ') :]}")
            self.sessions.run(lambda session: make(session, self._schema, shards, tablets))
            self.sessions.close()  # psycopg drops its prepared statements when tables are altered
            about = self.sessions.run(lambda session: read_about(session, self._schema))
        if about is None or (identity is not None and about.identity != identity):
            raise StoreError(f"{self._name} is another one now: it was removed and made again")
        return about

    @property
    def traffic(self) -> Traffic:
        """What this process has sent to the server, and its number of round trips."""
        return self.sessions.traffic

    def lock(self, owner: str, *, takeover: bool = False) -> None:
        if not self._take_lock(owner, takeover=takeover):
            raise StoreError(
                f"{self._name} is in use by {self._holder()}: one driver runs a pipeline at a time; stop "
                "that one first, give this one a store of its own, or, if that one hangs, take over from it "
                "(takeover=True, millwheel run --take-over)"
            )

    def _take_lock(self, owner: str, *, takeover: bool) -> bool:
        """Takes the session's lock: a driver that dies, or is cut off, loses it."""
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
        """After lost connections: takes the lock again, unless another driver has it.

        If another one has it, it has a newer sequencer as well, and our next write is refused.
        """
        if self._keeper is None or not self._keeping.acquire(blocking=False):
            return  # another thread is checking already
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
        """Rewrites every table (VACUUM FULL); the bytes before and after.

        The lock must be held: a table is locked for everyone meanwhile, and needs space for a copy.
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
    """A URL for libpq, and the parameters of the store in it."""
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
