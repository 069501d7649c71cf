"""The arrivals of a computation in an interval: buffered, left over, and sent."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millwheel.model.batch import RecordBatch
from millwheel.model.codec import pack, unpack
from millwheel.model.keys import PARTS
from millwheel.model.record import RecordId
from millwheel.store.base import Range, Snapshot
from millwheel.store.keyspace import backlog_key, part_with, tablet_near, tablets_of
from millwheel.store.reorder_rows import Waiters

if TYPE_CHECKING:
    from millwheel.worker.reorder_buffer import Waiting


class Arrivals:
    """Records in columns, in order of arrival, and by key their positions.

    There may be a key for each record, so a key has only a list of positions.
    """

    __slots__ = ("_names", "_runs", "_starts", "batch", "digests", "late", "old_ids", "streams")

    def __init__(self) -> None:
        self.batch = RecordBatch([], [], keys=[])
        """All records; lines of JSON if all arrived as such, else objects."""
        self.streams: list[str] = []
        self.old_ids: dict[int, RecordId] = {}
        """IDs of records that were buffered; they count as seen since their arrival."""
        self.late: set[int] = set()
        """The positions of buffered records that were late on arrival."""
        self.digests: list[bytes | None] | None = None
        """The digests of the IDs, once `SeenIds` has looked them up."""
        self._starts: dict[int, int] = {}
        self._names: set[str] = set()
        self._runs: list[tuple[int, list[int]]] = []
        """The starts of sections that are sorted by key, and their counts by key."""

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
        """The IDs of new records, if any has one."""
        return self.batch.ids

    def begin(self, part: int) -> None:
        """Assigns records that are added from here on to a part of the key space."""
        self._starts[part] = len(self.streams)

    def parts(self) -> dict[int | None, range]:
        """The positions of records by part; under None those of any part."""
        bounds = [*self._starts.values(), len(self.streams)]
        found: dict[int | None, range] = {None: range(bounds[0])}
        for part, (first, end) in zip(self._starts, itertools.pairwise(bounds), strict=True):
            found[part] = range(first, end)
        return found

    def add(self, batch: RecordBatch, stream: str, counts: list[int] | None = None) -> None:
        """Adds records; with ``counts`` they are sorted by key, with these counts."""
        if counts is not None:
            self._runs.append((len(self.streams), counts))
        if batch:
            self._names.add(stream)
        self.batch.extend(batch)
        self.streams += [stream] * len(batch)

    def add_local(self, batch: RecordBatch, stream: str) -> None:
        """Adds the output of a chained computation; the values are copies."""
        self._starts.clear()  # of any part
        self.add(RecordBatch(batch.timestamps, batch.objects(), keys=batch.key_column()), stream)

    def add_backlog(self, data: bytes) -> None:
        """Adds a tablet's backlog of the last step, before its other records."""
        for stream, keys, timestamps, ids, values in unpack(data):
            self.add(RecordBatch(timestamps, values, ids, keys), stream)

    def add_waiting(self, waiters: Waiters) -> None:
        """Adds buffered records."""
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

    def backlog(
        self, positions: Iterable[int], computation: int, tablets: int
    ) -> Iterator[tuple[bytes, bytes]]:
        """Encodes records for the next epoch, by tablet and in order."""
        positions = list(positions)
        by_tablet: dict[int, list[int]] = {}
        keys = self.keys
        found = tablets_of([keys[i] for i in positions], tablets)
        for position, tablet in zip(positions, found, strict=True):
            by_tablet.setdefault(tablet, []).append(position)
        for tablet, mine in by_tablet.items():
            runs = [list(run) for _, run in itertools.groupby(mine, self.streams.__getitem__)]
            yield backlog_key(computation, tablet), pack([self._run(run) for run in runs])

    def _run(self, positions: list[int]) -> list[Any]:
        mine = self.batch.take(positions)
        return [self.streams[positions[0]], mine.keys, mine.timestamps, mine.ids, mine.objects()]

    def only_stream(self) -> str | None:
        """The stream of all records, if there is only one."""
        return next(iter(self._names)) if len(self._names) == 1 else None

    def value(self, position: int) -> Any:
        """A record's value, decoded."""
        return self.batch.value(position)

    def by_key(self, part: range) -> dict[str, list[int]]:
        """The positions of each key's records in a range, in order."""
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
        deque(map(list.append, map(positions.__getitem__, keys), part), maxlen=0)  # a loop in C
        return positions


class Opened(NamedTuple):
    """A section: its part, if it has one, its stream, records, and counts by key."""

    part: int | None
    stream: str
    batch: RecordBatch
    counts: list[int] | None


def gather(
    computation: int,
    tablets: range,
    among: int,
    snapshot: Snapshot,
    sections: Sequence[Opened],
    waiting: Waiting | None,
) -> tuple[Arrivals, list[bytes]]:
    """The arrivals, and the store keys of what an earlier step left.

    ``tablets`` are those of the interval, ``among`` all of the key space. If some of the sections were sent
    by part, all are arranged by part.
    """
    left = list(snapshot.scan(*backlog_range(computation, tablets)[:2]))
    arrivals = Arrivals()
    if all(section.part is None for section in sections):
        if waiting is not None:
            waiting.add_to(arrivals)
        for _, data in left:
            arrivals.add_backlog(data)
        for section in sections:
            arrivals.add(section.batch, section.stream, section.counts)
        return arrivals, [key for key, _ in left]
    parts: dict[int, list[Opened]] = {
        part: [] for part in range(part_with(tablets[0], among), part_with(tablets[-1], among) + 1)
    }
    for section in sections:
        if section.part is not None:
            parts[section.part].append(section)
            continue
        positions: dict[int, list[int]] = {}
        for position, part in enumerate(tablets_of(section.batch.key_column(), PARTS)):
            positions.setdefault(part, []).append(position)
        for part, mine in positions.items():
            parts[part].append(Opened(part, section.stream, section.batch.take(mine), None))
    backlog: dict[int, list[bytes]] = {}
    for key, data in left:
        backlog.setdefault(part_with(tablet_near(key[3], tablets.start), among), []).append(data)
    for part, found in parts.items():
        arrivals.begin(part)
        if waiting is not None:
            waiting.add_to(arrivals, part)
        for data in backlog.get(part, ()):
            arrivals.add_backlog(data)
        for section in found:
            arrivals.add(section.batch, section.stream, section.counts)
    return arrivals, [key for key, _ in left]


def backlog_range(computation: int, tablets: range) -> Range:
    """The range of the store with the backlog of slow steps."""
    last = backlog_key(computation, tablets.stop - 1)
    return backlog_key(computation, tablets.start), last + b"\x00", len(tablets) + 1
