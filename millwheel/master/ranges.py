"""The ranges of the injectors' partitions that an epoch reads, and their tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millwheel.master.journal import Partition
from millwheel.model.injector import Injector, Offset
from millwheel.model.names import SourceName
from millwheel.model.pipeline import Source
from millwheel.model.time import MAX_TIME, MIN_TIME, SECOND
from millwheel.watermark.source import position, vouched
from millwheel.worker.plan import Range

_ABREAST = SECOND  # partitions whose timestamps are this close are read side by side

SMALLEST_SHARE = 200  # records: below that, a range costs more to open than to read
_LOOK = 1  # record of a partition with unknown timestamps, under a limit of skew
_LEARN = 16  # records once one is known: they show how much time a record covers
_LITTLE = 32  # a difference below 1/32 of a task's share is not balanced


class Poll(NamedTuple):
    """An injector's answer: the end of each partition, and whether it is final."""

    ends: dict[str, Offset]
    bounded: bool


@dataclass
class SkewLimit:
    """Keeps injectors from reading far ahead of the slowest computation (8.4).

    ``ceiling`` is the newest timestamp that may be read. The partition that is furthest behind, of the
    injectors that are, is always read, as nothing else can advance the watermark.
    """

    ceiling: int = MAX_TIME
    spans: dict[tuple[SourceName, str], float] = field(default_factory=dict)
    """By partition: the event time that a record covers, from the last range read."""
    behind: Collection[SourceName] = ()
    """The injectors with the lowest watermark."""
    careful: bool = False
    """Whether there will be a ceiling: unknown partitions are then sampled."""
    held_back: bool = False
    """Whether the ceiling kept something from being read."""

    def share(
        self, source: Source, name: str, partitions: Mapping[str, Partition], ready: list[str], share: int
    ) -> int:
        """The number of records that may be read of a partition."""
        newest = partitions[name].newest
        if self.ceiling == MAX_TIME:
            look = self.careful and newest == MIN_TIME and not source.injector.in_turn
            return min(share, _LOOK) if look else share
        if newest == MIN_TIME:
            return min(share, _LOOK)
        if source.name in self.behind and newest == min(partitions[other].newest for other in ready):
            return min(share, max(self._up_to_ceiling(source, name, newest), SMALLEST_SHARE))
        if newest < self.ceiling:
            return min(share, max(self._up_to_ceiling(source, name, newest), 1))
        self.held_back = True
        return 0

    def _up_to_ceiling(self, source: Source, name: str, newest: int) -> int:
        span = self.spans.get((source.name, name))
        if span is None:
            return _LEARN
        return int((self.ceiling - newest) / span) if span > 0 else MAX_TIME


def choose_ranges(
    sources: Sequence[Source],
    polled: Mapping[SourceName, Poll],
    partitions: Mapping[SourceName, Mapping[str, Partition]],
    bound: int,
    tasks: int,
    unsplit: int,
    skew: SkewLimit,
    turns: Mapping[tuple[SourceName, str], int] | None = None,
) -> list[Range]:
    """Chooses ranges of the partitions with input, of ``bound`` records in total.

    More than ``unsplit`` records are distributed evenly, so that all tasks take the same time, and
    one big partition uses every task. The pieces of a partition go to tasks in order: receivers keep the
    order of tasks, hence of its records. ``turns`` is when each partition was last read.
    """
    ready = {source.name: _ready(source, polled[source.name], partitions[source.name]) for source in sources}
    # A computation that catches up gets twice the share of the others, so that it does under full load too.
    shares = {source.name: 2 if source.reader else 1 for source in sources if ready[source.name]}
    if not shares:
        return []
    chosen: list[tuple[Source, str, Offset, Offset, int]] = []
    total = 0
    for source in sources:
        left = max(bound * shares.get(source.name, 0) // sum(shares.values()), 1)
        for name, share in _shares(source, ready[source.name], partitions[source.name], left, turns or {}):
            if left <= 0:
                break
            if not source.reader:
                share = skew.share(source, name, partitions[source.name], ready[source.name], share)
            if not share:
                continue
            start = partitions[source.name][name].offset
            stop = source.injector.bound(name, start, polled[source.name].ends[name], min(share, left))
            size = max(source.injector.size(name, start, stop), 1)
            chosen.append((source, name, start, stop, size))
            total += size
            left -= size
    if total <= unsplit:
        tasks = 1
    ranges: list[Range] = []
    done = 0
    for source, name, start, stop, size in chosen:
        state = partitions[source.name][name]
        watermark = vouched(source.injector, name, stop)
        for begin, end, task, weight in _pieces(source.injector, name, start, stop, size, done, total, tasks):
            done += weight
            last = end == stop
            mark = watermark if last else MIN_TIME
            ranges.append(Range(source.name, name, begin, end, task, mark, state.newest, last))
    used = sorted({item.task for item in ranges})
    number = {task: index for index, task in enumerate(used)}
    return [
        Range(r.source, r.partition, r.start, r.end, number[r.task], r.watermark, r.newest, r.last)
        for r in ranges
    ]


def caught_up(offset: Offset, end: Offset) -> bool:
    """Whether a partition has been read to its end; a numeric offset may be past it."""
    if end is None or offset == end:
        return True
    return isinstance(offset, int) and isinstance(end, int) and offset > end


def _ready(source: Source, poll: Poll, partitions: Mapping[str, Partition]) -> list[str]:
    return [name for name, end in poll.ends.items() if not caught_up(partitions[name].offset, end)]


def _shares(
    source: Source,
    ready: list[str],
    partitions: Mapping[str, Partition],
    bound: int,
    turns: Mapping[tuple[SourceName, str], int],
) -> list[tuple[str, int]]:
    """The partitions to read, and the number of records of each.

    If an epoch has no room for all of them, those come first that were not read for the longest time.
    If the watermark follows timestamps, those that are furthest behind come first: reading ahead in the
    others would only fill the store with windows that the watermark cannot close. A partition with unknown
    timestamps is sampled.
    """
    injector = source.injector
    if not ready:
        return []
    if injector.in_turn:
        return [(name, bound) for name in ready]
    if injector.slack is None:
        share = max(bound // len(ready), SMALLEST_SHARE)
        longest_ago = sorted(ready, key=lambda name: turns.get((source.name, name), 0))
        return [(name, share) for name in longest_ago]
    newest = {name: _position(injector, name, partitions[name]) for name in ready}
    fresh = [name for name in ready if newest[name] == MIN_TIME]
    known = [name for name in ready if newest[name] != MIN_TIME]
    if not known:
        # The first one is as good a guess as any; the others are sampled.
        return [*((name, SMALLEST_SHARE) for name in fresh[1:]), (fresh[0], bound)]
    shares = [(name, SMALLEST_SHARE) for name in fresh]
    known.sort(key=newest.__getitem__)
    last = newest[known[0]] + 2 * injector.slack + _ABREAST
    behind = [name for name in known if newest[name] <= last]
    left = max(bound - SMALLEST_SHARE * len(fresh), SMALLEST_SHARE)
    shares += [(name, max(left // len(behind), SMALLEST_SHARE)) for name in behind]
    # If those end early, the next ones fill the epoch.
    shares += [(name, bound) for name in known[len(behind) :]]
    return shares


def _position(injector: Injector, name: str, state: Partition) -> int:
    """The event time of a partition; the injector's, if nothing was read of it yet."""
    mark = vouched(injector, name, state.offset) if state.newest == MIN_TIME else MIN_TIME
    return position(state.newest, mark, injector.slack)


def _pieces(
    injector: Injector, name: str, start: Offset, stop: Offset, size: int, done: int, total: int, tasks: int
) -> Iterator[tuple[Offset, Offset, int, int]]:
    """A range divided at the ends of the tasks' shares: begin, end, task and size.

    ``done`` of the ``total`` records are assigned already. A small excess for a task is not moved to the
    next one: opening a piece has a cost.
    """
    little = max(total // tasks // _LITTLE, SMALLEST_SHARE)
    while start != stop:
        task = min((done + little) * tasks // total, tasks - 1)
        room = total * (task + 1) // tasks - done
        whole = task == tasks - 1 or size <= room + little
        end = stop if whole else injector.bound(name, start, stop, room)
        weight = size if end == stop else max(injector.size(name, start, end), 1)
        yield start, end, task, weight
        start, done, size = end, done + weight, max(size - weight, 1)
