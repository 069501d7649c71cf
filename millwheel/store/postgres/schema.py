"""The tables of a store in PostgreSQL: made by the program, numbered, and brought up to date by it.

A store is a schema: a table `journal`, one `shard_NN` for each shard, and `about`, which says how many
shards there are, which store it is, who drives it, and which version of the tables it has.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from millwheel.errors import StoreError
from millwheel.store.postgres.sessions import Session

_MAKING = 0x6D696C6C77686565  # an advisory lock of the database, while tables are made

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
# fillfactor: a row that is written again finds room in its own page, and its index entry stays (HOT).
# autovacuum: by default a fifth of a table dies before it is cleaned; index entries of timers and IDs come
# and go with every epoch. A checkpoint of an epoch is as a rule in the TOAST table, and dies with the next.
# EXTERNAL: values are not compressed, which would cost more than the step that made them.
_STORAGE = "ALTER TABLE {table} ALTER COLUMN value SET STORAGE EXTERNAL"
_KEY = "ALTER TABLE {table} ADD CONSTRAINT {key} PRIMARY KEY (key) WITH (fillfactor = 80)"


@dataclass(frozen=True)
class About:
    """What a store says of itself."""

    shards: int
    identity: str
    lock: int
    """By which advisory locks are taken: the schema's number in the database."""


def quoted(name: str) -> str:
    """A name as SQL takes it."""
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
    """Version 2: the tables as they were; timers may stand in bundles, which version 1 does not know."""


def _third(session: Session, schema: str, shards: int) -> None:
    """Version 3: the tables as they were; rows may wait in runs, which version 2 does not know."""


Migration = Callable[[Session, str, int], None]
MIGRATIONS: list[Migration] = [_first, _second, _third]
"""What brings a schema from each version to the next; the first of them makes the tables."""


def read_about(session: Session, schema: str, *, upgrade: bool = True) -> About | None:
    """What is there, or None where there is no store; ``upgrade`` brings an older one up to date."""
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
    about = About(int(entries["shards"]), entries["id"], _signed(found[0][0]))
    if version < len(MIGRATIONS) and upgrade:
        _transaction(session, lambda: _migrate(session, schema, about.shards))
    return about


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


def make(session: Session, schema: str, shards: int) -> None:
    """Makes a store where there is none."""
    _transaction(session, lambda: _make(session, schema, shards))


def _transaction(session: Session, work: Callable[[], None]) -> None:
    """One process at a time."""
    session.send("BEGIN")
    session.send("SELECT pg_advisory_xact_lock($1::int8)", (_MAKING,))
    work()
    session.send("COMMIT")
    session.sync()


def _make(session: Session, schema: str, shards: int) -> None:
    name = quoted(schema)
    there = session.rows("SELECT count(*) FROM pg_namespace WHERE nspname = $1", (schema,))
    if not there[0][0]:  # IF NOT EXISTS asks for the right to make one, even where there is nothing to make
        session.send(f"CREATE SCHEMA {name}")
    made = session.rows("SELECT to_regclass($1) IS NOT NULL", (f"{name}.about",))
    if made[0][0]:
        return  # by another process, in this moment
    session.send(f"CREATE TABLE {name}.about (name text PRIMARY KEY, value text NOT NULL)")
    session.send(
        f"INSERT INTO {name}.about VALUES ('version', '0'), ('shards', $1), ('id', $2), ('owner', '')",
        (str(shards), uuid.uuid4().hex),
    )
    _migrate(session, schema, shards)


def _migrate(session: Session, schema: str, shards: int) -> None:
    name = quoted(schema)
    found = session.rows(f"SELECT value FROM {name}.about WHERE name = 'version' FOR UPDATE")
    for migration in MIGRATIONS[int(found[0][0]) :]:
        migration(session, name, shards)
    session.send(f"UPDATE {name}.about SET value = $1 WHERE name = 'version'", (str(len(MIGRATIONS)),))
