"""What arrived for one computation in one interval, by key, with duplicates found (6.1.1)."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import xxhash

from millwheel.model.batch import RecordBatch
from millwheel.model.codec import pack, pack_plain, unpack
from millwheel.model.graph import Edge, Graph
from millwheel.model.record import RecordId
from millwheel.model.time import DAY
from millwheel.store.base import Range, Snapshot
from millwheel.store.keyspace import (
    DIGEST,
    after,
    backlog_key,
    id_log_prefix,
    id_prefix,
    tablets_of,
    time_bytes,
)
from millwheel.store.reorder_rows import Waiters

if TYPE_CHECKING:
    from millwheel.worker.bloom import IdFilter


_LOGGED_TABLET = -3  # of a key of the log: the tablet, and a number of two bytes
_RELOGGED = 256  # entries in a step: each has the IDs of a step


class Arrivals:
    """Records in columns, in order of arrival, and by key the positions of its records in them.

    There may be a key for each record, so a key has nothing but a list of positions.
    """

    __slots__ = ("_names", "_runs", "_starts", "batch", "digests", "late", "old_ids", "streams")

    def __init__(self) -> None:
        self.batch = RecordBatch([], [], keys=[])
        """All of them; lines of JSON where all came as such, else objects."""
        self.streams: list[str] = []
        self.old_ids: dict[int, RecordId] = {}
        """Of records that have waited: their IDs, which count as seen since they came."""
        self.late: set[int] = set()
        """The positions of records that waited, and were late when they came."""
        self.digests: list[bytes | None] | None = None
        """Of the IDs, once `SeenIds` has looked them up."""
        self._starts: dict[int, int] = {}
        self._names: set[str] = set()
        self._runs: list[tuple[int, list[int]]] = []
        """Where a section begins in which each key's records are together, and how many each key has."""

    @property
    def keys(self) -> list[str]:
        """The key of each record."""
        return self.batch.key_column()

    @property
    def timestamps(self) -> list[int]:
        """The timestamp of each record."""
        return self.batch.timestamps

    @property
    def ids(self) -> list[RecordId | None] | None:
        """The IDs of new records, where one has some."""
        return self.batch.ids

    def begin(self, tablet: int) -> None:
        """What is added from here on is for one tablet, until the next begins."""
        self._starts[tablet] = len(self.streams)

    def parts(self) -> dict[int | None, range]:
        """The positions of records by tablet; by None those that are for any."""
        bounds = [*self._starts.values(), len(self.streams)]
        found: dict[int | None, range] = {None: range(bounds[0])}
        for tablet, (first, end) in zip(self._starts, itertools.pairwise(bounds), strict=True):
            found[tablet] = range(first, end)
        return found

    def add(self, batch: RecordBatch, stream: str, counts: list[int] | None = None) -> None:
        """Adds records; with ``counts`` they are in order of their keys, of which each has so many."""
        if counts is not None:
            self._runs.append((len(self.streams), counts))
        if batch:
            self._names.add(stream)
        self.batch.extend(batch)
        self.streams += [stream] * len(batch)

    def add_local(self, batch: RecordBatch, stream: str) -> None:
        """Adds what a computation chained before this one produced; the values are copies."""
        self._starts.clear()  # for whatever tablet
        self.add(RecordBatch(batch.timestamps, batch.objects(), keys=batch.key_column()), stream)

    def add_backlog(self, data: bytes) -> None:
        """Adds what the last step left of a tablet: before everything else of that."""
        for stream, keys, timestamps, ids, values in unpack(data):
            self.add(RecordBatch(timestamps, values, ids, keys), stream)

    def add_waiting(self, waiters: Waiters) -> None:
        """Adds records that have waited for the watermark."""
        before = len(self.streams)
        values = [] if waiters.values is None else waiters.values
        self.batch.extend(RecordBatch(waiters.timestamps, values, keys=waiters.keys, json=waiters.json))
        self._names.update(waiters.streams)
        self.streams += waiters.streams
        self.late.update(before + place for place in waiters.late)
        if waiters.ids is not None:
            self.old_ids.update({before + i: id for i, id in enumerate(waiters.ids) if id is not None})

    def id(self, position: int) -> RecordId | None:
        """A record's ID."""
        id = None if self.ids is None else self.ids[position]
        return self.old_ids.get(position) if id is None else id

    def backlog(self, positions: Iterable[int], computation: int) -> Iterator[tuple[bytes, bytes]]:
        """Records, by tablet and in order, as they are stored for the next epoch."""
        positions = list(positions)
        by_tablet: dict[int, list[int]] = {}
        keys = self.keys
        for position, tablet in zip(positions, tablets_of([keys[i] for i in positions]), strict=True):
            by_tablet.setdefault(tablet, []).append(position)
        for tablet, mine in by_tablet.items():
            runs = [list(run) for _, run in itertools.groupby(mine, self.streams.__getitem__)]
            yield backlog_key(computation, tablet), pack([self._run(run) for run in runs])

    def _run(self, positions: list[int]) -> list[Any]:
        mine = self.batch.take(positions)
        return [self.streams[positions[0]], mine.keys, mine.timestamps, mine.ids, mine.objects()]

    def only_stream(self) -> str | None:
        """The stream of all records, where there is but one."""
        return next(iter(self._names)) if len(self._names) == 1 else None

    def value(self, position: int) -> Any:
        """A record's value, decoded."""
        return self.batch.value(position)

    def by_key(self, part: range) -> dict[str, list[int]]:
        """The positions of each key's records among these, in order."""
        positions: defaultdict[str, list[int]] = defaultdict(list)
        keys = self.keys
        runs = [(start, counts) for start, counts in self._runs if part.start <= start < part.stop]
        if runs and sum(sum(counts) for _, counts in runs) == len(part):
            for start, counts in runs:
                for count in counts:
                    end = start + count
                    positions[keys[start]] += range(start, end)
                    start = end
            return positions
        if len(part) < len(keys):
            keys = keys[part.start : part.stop]
        deque(map(list.append, map(positions.__getitem__, keys), part), maxlen=0)  # a loop without a line
        return positions


class SeenIds:
    """The IDs that a computation has seen in an interval: those in the store, and this epoch's.

    IDs are scoped by (computation, key, stream, ID).
    """

    def __init__(self, computation: int) -> None:
        self._prefix = id_prefix(computation)
        self._computation = computation
        self._known: set[bytes] = set()
        self._new: dict[str, list[bytes]] = {}
        self.filtered = 0
        """IDs that the filter knew to be new."""
        self.read = 0
        """IDs for which the store was asked."""

    def look_up(self, arrivals: Arrivals, snapshot: Snapshot, ids: IdFilter) -> None:
        """Gives every record that has an ID its digest, and reads those that the store may know."""
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
            kept = retention[stream] if stream in retention else max(retentions(retention))
            expiry = time_bytes(min(now + kept, 2**63 - 1))
            key = id_log_prefix(self._computation) + expiry + epoch.to_bytes(8, "big")
            yield (
                key + bytes((tablet,)) + number.to_bytes(2, "big"),
                b"".join(digest[len(self._prefix) :] for digest in digests),
            )

    def expired(self, snapshot: Snapshot, now: int, limit: int) -> list[bytes]:
        """Keys to delete: IDs past their retention, ``limit`` logged epochs' worth at most.

        They may be another interval's of the same shard: nobody asks for an expired ID any more.
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
    """Log entries of an interval that a clock which was wrong has dated too late: old key, new key, value."""
    prefix = id_log_prefix(computation)
    found: list[tuple[bytes, bytes, bytes]] = []
    for key, value in snapshot.scan(prefix + time_bytes(min(now + kept + 1, 2**63 - 1)), after(prefix)):
        tablet = key[_LOGGED_TABLET]
        if tablet in mine:
            number = 2**16 - 1 - len(found)  # those of this epoch's own IDs count up
            place = epoch.to_bytes(8, "big") + bytes((tablet,)) + number.to_bytes(2, "big")
            found.append((key, prefix + time_bytes(min(now + kept, 2**63 - 1)) + place, value))
            if len(found) == _RELOGGED:
                break
    return found


def backlog_range(computation: int, tablets: range) -> Range:
    """Where the records stand that slow steps have left."""
    last = backlog_key(computation, tablets.stop - 1)
    return backlog_key(computation, tablets.start), last + b"\x00", len(tablets) + 1


def expired_range(computation: int, now: int, limit: int) -> Range:
    """Where the IDs are logged that are past their retention."""
    prefix = id_log_prefix(computation)
    return prefix, prefix + time_bytes(now), limit


def id_retention(graph: Graph, edges: Iterable[Edge]) -> dict[str, int]:
    """By injected input stream: how long its IDs are remembered, the longest of its injectors."""
    retention: dict[str, int] = {}
    for edge in edges:
        origins = graph.origins(edge.stream)
        for source in graph.sources:
            if source.stream in origins:
                kept = retention.get(edge.stream, 0)
                retention[edge.stream] = max(kept, source.injector.id_retention)
    return retention


def retentions(found: dict[str, int]) -> Collection[int]:
    """How long a computation's IDs are remembered.

    Records may wait in its backlog whose injector was taken out since; where it had no other, as long as
    injectors remember by default.
    """
    return found.values() or (DAY,)
