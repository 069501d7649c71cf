"""What a store in PostgreSQL has in its tables, and how often it waits for the server."""

from __future__ import annotations

from collections.abc import Callable

from millwheel.store.postgres.postgres_store import PostgresStore


def rows(store: PostgresStore) -> dict[bytes, bytes]:
    """What stands in the table of the first shard."""
    query = f"SELECT key, value FROM {store.tables[1]}"
    return dict(store.sessions.run(lambda session: session.rows(query)))


def count_waits(store: PostgresStore, work: Callable[[], object]) -> tuple[int, int]:
    """How often some work has waited for the server, and how many statements it has sent."""
    waits, statements = store.traffic.waits, store.traffic.statements
    work()
    return store.traffic.waits - waits, store.traffic.statements - statements
