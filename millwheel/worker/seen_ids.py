"""The record IDs that a computation has seen, and their expiry (6.1.1)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import xxhash

from millwheel.model.codec import pack_plain
from millwheel.model.graph import Edge, Graph
from millwheel.model.time import DAY
from millwheel.store.base import Range, Snapshot
from millwheel.store.keyspace import (
    DIGEST,
    after,
    id_log_prefix,
    id_prefix,
    tablet_byte,
    tablet_bytes,
    time_bytes,
)
from millwheel.worker.inbox import Arrivals

if TYPE_CHECKING:
    from millwheel.worker.bloom import IdFilter


_LOGGED_TABLET = -3  # in a key of the log: the tablet, before a number of two bytes
_RELOGGED = 256  # entries moved in a step: each has the IDs of one step


class SeenIds:
    """The IDs that a computation has seen in an interval: stored, and new ones.

    IDs are scoped by (computation, key, stream, ID).
    """

    def __init__(self, computation: int) -> None:
        self._prefix = id_prefix(computation)
        self._computation = computation
        self._known: set[bytes] = set()
        self._new: dict[str, list[bytes]] = {}
        self.filtered = 0
        """IDs found to be new by the filter."""
        self.read = 0
        """IDs looked up in the store."""

    def look_up(self, arrivals: Arrivals, snapshot: Snapshot, ids: IdFilter) -> None:
        """Computes the digests of IDs, and looks up those that the store may have."""
        if arrivals.ids is None:
            return
        prefix = self._prefix
        digest = xxhash.xxh3_128_digest
        arrivals.digests = [
            None if id is None else prefix + digest(pack_plain([key, stream, id]))
            for key, stream, id in zip(arrivals.keys, arrivals.streams, arrivals.ids, strict=True)
        ]
        asked = [found for found in arrivals.digests if found is not None]
        passed = ids.bloom.may_have(b"".join(found[len(prefix) :] for found in asked))
        wanted = sorted(itertools.compress(asked, passed))
        self.filtered, self.read = len(asked) - len(wanted), len(wanted)
        found = snapshot.get_each(wanted)
        self._known.update(key for key, value in zip(wanted, found, strict=True) if value is not None)

    def is_new(self, stream: str, digest: bytes) -> bool:
        """Whether an ID was never seen; marks it as seen."""
        if digest in self._known:
            return False
        self._known.add(digest)
        self._new.setdefault(stream, []).append(digest)
        return True

    def writes(
        self, epoch: int, now: int, tablet: int, retention: dict[str, int]
    ) -> Iterable[tuple[bytes, bytes]]:
        """The new IDs, and the log entry by which they expire together."""
        for number, (stream, digests) in enumerate(sorted(self._new.items())):
            for digest in digests:
                yield digest, b""
            kept = retention[stream] if stream in retention else max(retentions(retention))
            expiry = time_bytes(min(now + kept, 2**63 - 1))
            key = id_log_prefix(self._computation) + expiry + epoch.to_bytes(8, "big")
            yield (
                key + tablet_byte(tablet) + number.to_bytes(2, "big"),
                b"".join(digest[len(self._prefix) :] for digest in digests),
            )

    def expired(self, snapshot: Snapshot, now: int, limit: int) -> list[bytes]:
        """Keys to delete: expired IDs, at most ``limit`` logged epochs.

        They may be another interval's of the same shard: an expired ID is never looked up again.
        """
        deletes: list[bytes] = []
        for key, value in snapshot.scan(*expired_range(self._computation, now, limit)[:2]):
            deletes.append(key)
            deletes.extend(self._prefix + value[i : i + DIGEST] for i in range(0, len(value), DIGEST))
            limit -= 1
            if not limit:
                break
        return deletes


def relogged(
    computation: int, snapshot: Snapshot, epoch: int, now: int, mine: range, kept: int
) -> list[tuple[bytes, bytes, bytes]]:
    """Log entries that a wrong clock dated too late: old key, new key, value."""
    prefix, mine = id_log_prefix(computation), tablet_bytes(mine)
    found: list[tuple[bytes, bytes, bytes]] = []
    for key, value in snapshot.scan(prefix + time_bytes(min(now + kept + 1, 2**63 - 1)), after(prefix)):
        tablet = key[_LOGGED_TABLET]
        if tablet in mine:
            number = 2**16 - 1 - len(found)  # numbers of this epoch's own IDs count up
            place = epoch.to_bytes(8, "big") + tablet_byte(tablet) + number.to_bytes(2, "big")
            found.append((key, prefix + time_bytes(min(now + kept, 2**63 - 1)) + place, value))
            if len(found) == _RELOGGED:
                break
    return found


def expired_range(computation: int, now: int, limit: int) -> Range:
    """The range of the log with expired IDs."""
    prefix = id_log_prefix(computation)
    return prefix, prefix + time_bytes(now), limit


def id_retention(graph: Graph, edges: Iterable[Edge]) -> dict[str, int]:
    """By injected input stream: the longest ID retention of its injectors."""
    retention: dict[str, int] = {}
    for edge in edges:
        origins = graph.origins(edge.stream)
        for source in graph.sources:
            if source.stream in origins:
                kept = retention.get(edge.stream, 0)
                retention[edge.stream] = max(kept, source.injector.id_retention)
    return retention


def retentions(found: dict[str, int]) -> Collection[int]:
    """The retentions of a computation's IDs.

    Its backlog may have records of an injector that was removed since; if it had no other, the default
    retention of injectors applies.
    """
    return found.values() or (DAY,)
