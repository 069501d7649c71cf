"""What arrived for one computation in one interval, by key, with duplicates found (6.1.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import xxhash

from millwheel.model.codec import pack
from millwheel.model.graph import Edge, Graph
from millwheel.model.record import RecordId
from millwheel.store.base import Snapshot
from millwheel.store.layout import id_log_prefix, id_prefix, time_bytes
from millwheel.worker.envelope import Columns, Section

_DIGEST = 16  # bytes: two of a billion IDs meet with a chance of one in 10^20


Part = tuple[str, list[int], list[Any], list[RecordId | None] | None, list[bytes | None] | None, int, int]
"""Some records of one key from one stream, in order: stream, columns (timestamps, values, IDs, digests of
the IDs), and from where to where they stand in them.

A plain tuple into shared columns: there is one for each key, and nothing is made faster.
"""

Arrivals = dict[str, list[Part]]


def add_section(arrivals: Arrivals, section: Section, stream: str) -> None:
    """Adds what another task sent."""
    _, _, keys, counts, timestamps, ids, values = section
    start = 0
    if not arrivals:
        for key, count in zip(keys, counts, strict=True):
            end = start + count
            arrivals[key] = [(stream, timestamps, values, ids, None, start, end)]
            start = end
        return
    for key, count in zip(keys, counts, strict=True):
        end = start + count
        part = (stream, timestamps, values, ids, None, start, end)
        if key in arrivals:
            arrivals[key].append(part)
        else:
            arrivals[key] = [part]
        start = end


def add_local(arrivals: Arrivals, keys: list[str], columns: Columns, stream: str) -> None:
    """Adds what a computation chained before this one produced; the values are copies."""
    times: dict[str, list[int]] = {}
    values: dict[str, list[Any]] = {}
    for key, time, value in zip(keys, columns.timestamps, columns.objects(), strict=True):
        if key in times:
            times[key].append(time)
            values[key].append(value)
        else:
            times[key], values[key] = [time], [value]
    for key, mine in times.items():
        arrivals.setdefault(key, []).append((stream, mine, values[key], None, None, 0, len(mine)))


class SeenIds:
    """The IDs that a computation has seen in an interval: those in the store, and this epoch's.

    IDs are scoped by (computation, key, stream, ID).
    """

    def __init__(self, computation: int) -> None:
        self._prefix = id_prefix(computation)
        self._computation = computation
        self._known: set[bytes] = set()
        self._new: dict[str, list[bytes]] = {}

    def look_up(self, arrivals: Arrivals, snapshot: Snapshot) -> None:
        """Gives every part that has IDs their digests, and reads those that the store knows."""
        wanted: list[bytes] = []
        prefix = self._prefix
        digest = xxhash.xxh3_128_digest
        for key, parts in arrivals.items():
            for index, (stream, timestamps, values, ids, _, start, end) in enumerate(parts):
                if ids is None:
                    continue
                digests = [
                    None if id is None else prefix + digest(pack([key, stream, id])) for id in ids[start:end]
                ]
                parts[index] = (stream, timestamps, values, ids, digests, start, end)
                wanted.extend(found for found in digests if found is not None)
        if wanted:
            wanted.sort()
            found = snapshot.get_each(wanted)
            self._known.update(key for key, value in zip(wanted, found, strict=True) if value is not None)

    def is_new(self, stream: str, digest: bytes) -> bool:
        """Whether the ID was never seen; from here on it was."""
        if digest in self._known:
            return False
        self._known.add(digest)
        self._new.setdefault(stream, []).append(digest)
        return True

    def writes(
        self, epoch: int, now: int, tablet: int, retention: dict[str, int]
    ) -> Iterable[tuple[bytes, bytes]]:
        """The new IDs, and the log that will forget them together."""
        for number, (stream, digests) in enumerate(sorted(self._new.items())):
            for digest in digests:
                yield digest, b""
            expiry = time_bytes(min(now + retention[stream], 2**63 - 1))
            key = id_log_prefix(self._computation) + expiry + epoch.to_bytes(8, "big")
            yield key + bytes((tablet, number)), b"".join(digest[len(self._prefix) :] for digest in digests)

    def expired(self, snapshot: Snapshot, now: int, limit: int) -> list[bytes]:
        """Keys to delete: IDs past their retention, ``limit`` logged epochs' worth at most.

        They may be another interval's of the same shard: nobody asks for an expired ID any more.
        """
        deletes: list[bytes] = []
        prefix = id_log_prefix(self._computation)
        for key, value in snapshot.scan(prefix, prefix + time_bytes(now)):
            deletes.append(key)
            deletes.extend(self._prefix + value[i : i + _DIGEST] for i in range(0, len(value), _DIGEST))
            limit -= 1
            if not limit:
                break
        return deletes


def id_retention(graph: Graph, edges: Iterable[Edge]) -> dict[str, int]:
    """By injected input stream: how long its IDs are remembered, the longest of its injectors."""
    retention: dict[str, int] = {}
    for edge in edges:
        for source in graph.sources:
            if source.stream == edge.stream:
                kept = retention.get(edge.stream, 0)
                retention[edge.stream] = max(kept, source.injector.id_retention)
    return retention
