"""The tables of a store in PostgreSQL: created, versioned and migrated.

A store is a schema: a table `journal`, one `shard_NN` for each shard, and `about`, which has the numbers of
shards and of tablets (if those are not 64), the identity of the store, its driver, and the version of the
tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from millwheel.errors import StoreError
from millwheel.model.keys import TABLETS
from millwheel.store.formats import check_tablets
from millwheel.store.postgres.sessions import Session

_MAKING = 0x6D696C6C77686565  # an advisory lock of the database while tables are made

_TABLE = """
    CREATE TABLE {table} (key bytea NOT NULL, value bytea NOT NULL) WITH (
        fillfactor = 80,
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_scale_factor = 0.1,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0,
        toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_threshold = 2000,
        toast.autovacuum_vacuum_cost_delay = 0
    )
"""
# fillfactor: an updated row stays in its own page, and its index entry does not change (HOT).
# autovacuum: by default a table is cleaned when a fifth of it is dead; index entries of timers and IDs
# change with every epoch. A checkpoint is mostly in the TOAST table, and is replaced by the next.
# EXTERNAL: values are not compressed, which would cost more than the step that made them.
_STORAGE = "ALTER TABLE {table} ALTER COLUMN value SET STORAGE EXTERNAL"
_KEY = "ALTER TABLE {table} ADD CONSTRAINT {key} PRIMARY KEY (key) WITH (fillfactor = 80)"


@dataclass(frozen=True)
class About:
    """The table `about` of a store."""

    shards: int
    identity: str
    lock: int
    """The key of its advisory locks: the schema's number in the database."""
    tablets: int = TABLETS


def quoted(name: str) -> str:
    """A name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def tables(shards: int) -> list[str]:
    """The journal, then the shards."""
    return ["journal", *(f"shard_{number:02d}" for number in range(shards))]


def _first(session: Session, schema: str, shards: int) -> None:
    """Version 1."""
    for name in tables(shards):
        table = f"{schema}.{name}"
        for statement in (_TABLE, _STORAGE, _KEY):
            session.send(statement.format(table=table, key=f"{name}_key"))


def _second(session: Session, schema: str, shards: int) -> None:
    """Version 2: the same tables; timers may be in bundles, unknown to version 1."""


def _third(session: Session, schema: str, shards: int) -> None:
    """Version 3: the same tables; rows may be in runs, unknown to version 2."""


Migration = Callable[[Session, str, int], None]
MIGRATIONS: list[Migration] = [_first, _second, _third]
"""The migration of each version to the next; the first one makes the tables."""


def read_about(session: Session, schema: str, *, upgrade: bool = True) -> About | None:
    """The store's `About`, None without a store; ``upgrade`` migrates an older one."""
    found = session.rows(
        "SELECT oid::int8, to_regclass($2) IS NOT NULL FROM pg_namespace WHERE nspname = $1",
        (schema, f"{quoted(schema)}.about"),
    )
    if not found or not found[0][1]:
        return None
    entries = dict(session.rows(f"SELECT name, value FROM {quoted(schema)}.about"))
    version = int(entries["version"])
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the tables of the schema {schema!r} have version {version}, and this millwheel knows them up "
            f"to version {len(MIGRATIONS)}: use a newer millwheel"
        )
    tablets = int(entries.get("tablets", TABLETS))
    about = About(int(entries["shards"]), entries["id"], _signed(found[0][0]), tablets)
    if version < len(MIGRATIONS) and upgrade:
        _transaction(session, lambda: _migrate(session, schema, about.shards))
    return about


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


def make(session: Session, schema: str, shards: int, tablets: int = TABLETS) -> None:
    """Makes a new store."""
    check_tablets(shards, tablets)
    _transaction(session, lambda: _make(session, schema, shards, tablets))


def _transaction(session: Session, work: Callable[[], None]) -> None:
    """Runs work in a transaction, in one process at a time."""
    session.send("BEGIN")
    session.send("SELECT pg_advisory_xact_lock($1::int8)", (_MAKING,))
    work()
    session.send("COMMIT")
    session.sync()


def _make(session: Session, schema: str, shards: int, tablets: int) -> None:
    name = quoted(schema)
    there = session.rows("SELECT count(*) FROM pg_namespace WHERE nspname = $1", (schema,))
    if not there[0][0]:  # IF NOT EXISTS needs the right to create one, even if it exists
        session.send(f"CREATE SCHEMA {name}")
    made = session.rows("SELECT to_regclass($1) IS NOT NULL", (f"{name}.about",))
    if made[0][0]:
        return  # by another process, at this moment
    session.send(f"CREATE TABLE {name}.about (name text PRIMARY KEY, value text NOT NULL)")
    session.send(
        f"INSERT INTO {name}.about VALUES ('version', '0'), ('shards', $1), ('id', $2), ('owner', '')",
        (str(shards), uuid.uuid4().hex),
    )
    if tablets != TABLETS:
        session.send(f"INSERT INTO {name}.about VALUES ('tablets', $1)", (str(tablets),))
    _migrate(session, schema, shards)


def _migrate(session: Session, schema: str, shards: int) -> None:
    name = quoted(schema)
    found = session.rows(f"SELECT value FROM {name}.about WHERE name = 'version' FOR UPDATE")
    for migration in MIGRATIONS[int(found[0][0]) :]:
        migration(session, name, shards)
    session.send(f"UPDATE {name}.about SET value = $1 WHERE name = 'version'", (str(len(MIGRATIONS)),))
