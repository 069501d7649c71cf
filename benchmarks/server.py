"""A PostgreSQL of one's own for a benchmark: as durable as one in production, and sized for its machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.postgres import Cluster, cluster

# What anybody sets who runs a database of some size; fsync and synchronous_commit are as they come: on.
SETTINGS = ("shared_buffers=1GB", "max_wal_size=4GB", "checkpoint_timeout=15min", "autovacuum_naptime=10s")


@contextmanager
def postgres() -> Iterator[Cluster]:
    """A server that is stopped and removed at the end."""
    with cluster(SETTINGS) as found:
        yield found
