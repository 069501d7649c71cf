"""A PostgreSQL of one's own for a benchmark: as durable as one in production, and sized for its machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.postgres import Cluster, cluster

# What anybody sets who runs a database of some size; fsync and synchronous_commit are as they come: on.
SETTINGS = ("max_wal_size=8GB", "checkpoint_timeout=15min", "autovacuum_naptime=10s")


@contextmanager
def postgres(buffers: str = "1GB") -> Iterator[Cluster]:
    """A server with so much memory for pages, stopped and removed at the end."""
    with cluster((*SETTINGS, f"shared_buffers={buffers}")) as found:
        yield found
