"""A key's records and timers in order of time (``in_order=True``, semantics 14)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Final

from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME
from millwheel.store.row import Times
from millwheel.worker.budget import Budget
from millwheel.worker.context import HookContext
from millwheel.worker.inbox import Arrivals
from millwheel.worker.reorder_buffer import is_due

NEVER: Final = MAX_TIME + 1
"""Later than every time."""

Fire = Callable[[Times, Times, int], None]
"""Fires a key's due timers up to a time, new ones included, in order."""


class Ordered:
    """The arrivals of one computation in one step: due records, and buffered ones.

    A record is admitted on arrival: then its ID counts as seen, and the late policy is applied.
    """

    def __init__(self, arrivals: Arrivals, before: int, bound: int) -> None:
        self._arrivals = arrivals
        self._before = before
        self._bound = bound
        self._due: list[int] | None = None
        """The positions of due records; None: all are."""
        self.waiting: list[int] = []
        """The positions of records to buffer."""
        self.late: set[int] = set(arrivals.late)
        """The positions of late records that are delivered."""

    def admit(
        self,
        old: Iterable[range],
        without_duplicates: Callable[[list[bytes | None], list[str], list[int]], list[int]],
        takes_late: Callable[[Record], bool],
    ) -> None:
        """Admits new records: all except those at ``old`` positions."""
        arrivals, before, bound = self._arrivals, self._before, self._bound
        timestamps = arrivals.timestamps
        if not timestamps:
            return
        digests = arrivals.digests
        oldest, newest = min(timestamps), max(timestamps)
        if digests is None and oldest >= before and is_due(newest, bound):
            return  # the common case, if the watermark follows closely
        limit = bound if bound < MAX_TIME else NEVER
        if digests is None and oldest >= before:
            self._due = [position for position, time in enumerate(timestamps) if time < limit]
            self.waiting = [position for position, time in enumerate(timestamps) if time >= limit]
            return
        known = {position for part in old for position in part}
        fresh = [position for position in range(len(timestamps)) if position not in known]
        if digests is not None:
            fresh = without_duplicates(digests, arrivals.streams, fresh)
        if oldest < before:
            fresh = [position for position in fresh if self._takes(position, takes_late)]
        every = sorted([*known, *fresh]) if known else fresh
        self._due = [position for position in every if timestamps[position] < limit]
        self.waiting = [position for position in every if timestamps[position] >= limit]

    def _takes(self, position: int, takes_late: Callable[[Record], bool]) -> bool:
        arrivals = self._arrivals
        timestamp = arrivals.timestamps[position]
        if timestamp >= self._before:
            return True
        key, stream = arrivals.keys[position], arrivals.streams[position]
        taken = takes_late(
            Record(arrivals.value(position), timestamp, key, stream, arrivals.id(position), True)
        )
        if taken:
            self.late.add(position)
        return taken

    def by_key(self, part: range) -> dict[str, list[int]]:
        """By key: the positions of its due records, by timestamp, then arrival."""
        arrivals = self._arrivals
        if self._due is None:
            found = arrivals.by_key(part)
        else:
            mine = self._due[bisect_left(self._due, part.start) : bisect_left(self._due, part.stop)]
            found = defaultdict(list)
            lists = map(found.__getitem__, map(arrivals.keys.__getitem__, mine))
            deque(map(list.append, lists, mine), maxlen=0)  # a loop in C
        time_of = arrivals.timestamps.__getitem__
        for mine in found.values():
            if len(mine) > 1:
                mine.sort(key=time_of)
        return found

    def combining_runner(
        self,
        context: HookContext,
        budget: Budget,
        diverted: Callable[[Record, Exception], None],
        fire: Fire,
        now: int,
    ) -> Callable[[str, list[int]], int]:
        """Makes a function that runs a key's due records and the timers between them.

        A combiner merges records with no timer between them. With ``errors="divert"`` each record is run
        alone: undoing a group would undo its timers too.
        """
        from millwheel.worker.combine import MOST, Combining  # few pipelines need it

        arrivals, late = self._arrivals, self.late
        timestamps, streams = arrivals.timestamps, arrivals.streams
        alone = context.node.errors == "divert"
        most = 1 if alone else MOST

        def fire_until(timestamp: int) -> None:
            if next_time(context.timers, context.wall, now) <= timestamp:
                fire(context.timers, context.wall, timestamp)

        combining = Combining(
            context, arrivals, late.__contains__, diverted, between=None if alone else fire_until
        )

        def run_records(key: str, mine: list[int]) -> int:
            reached = 0
            while reached < len(mine):
                if budget.left <= 0 and budget.is_over():
                    break
                start = mine[reached]
                fire_until(timestamps[start])
                first = next_time(context.timers, context.wall, now)
                end, last = reached + 1, min(len(mine), reached + most)
                if start not in late:
                    stream = streams[start]
                    while end < last and timestamps[mine[end]] < first and streams[mine[end]] == stream:
                        end += 1
                budget.left -= end - reached
                combining.group(key, mine[reached:end])
                reached = end
            return reached

        return run_records


def next_time(timers: Times, wall: Times, now: int) -> int:
    """The time of a key's next timer; of the wall timers, the next due one."""
    first = min(timers.values()) if timers else NEVER
    if wall:
        first = min([first, *(time for time in wall.values() if time <= now)])
    return first
