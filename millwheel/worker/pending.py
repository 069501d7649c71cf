"""The pending timestamps of an interval, for percentile low watermarks (7.2).

Each watermark timer, each hold and each buffered record counts once (semantics 13). The index has a key's
earliest of each kind; the others are in its row. Only the oldest are read: those before the newest watermark
of an injector, since later ones cannot matter now, and never more than a percentile can ignore.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from itertools import islice

from millwheel.store.base import Snapshot
from millwheel.store.keyspace import KIND_HOLD, KIND_WATERMARK, row_prefix
from millwheel.store.row import row_parts
from millwheel.store.window_row import is_window, keys_in
from millwheel.watermark.percentile import ALL, Pending, rest
from millwheel.worker.reorder_buffer import Waiting, waiting_times
from millwheel.worker.timer_index import HOLDS, WAITING_TOTAL, WATERMARK_TIMERS, Tablets

_CHUNK = 64  # keys whose rows are read at once; the least number of timestamps read
_MORE = 1_000  # timestamps read beyond those that a percentile ignores: other intervals may have new ones


def pending_of(
    tablets: Tablets,
    snapshot: Snapshot,
    computation: int,
    written: Mapping[bytes, bytes],
    waiting: Waiting | None,
    *,
    bound: int,
    before: int,
    lowest: float,
    holds: bool,
) -> Pending:
    """The pending timestamps after a step: all before ``bound``, if they can matter.

    ``written`` has the rows that the step has changed, ``waiting`` the buffered records. ``before`` is the
    number of timestamps pending in all intervals before the epoch, ``lowest`` the lowest percentile in use.
    """
    totals = tablets.totals()
    count = totals[WATERMARK_TIMERS] + (totals[HOLDS] if holds else 0) + totals[WAITING_TOTAL]
    most = math.floor(rest(lowest) * (2 * before + count)) + _MORE
    times: list[int] = []
    counts: list[int] = []
    oldest = heapq.merge(
        _times(tablets, snapshot, row_prefix(computation), written, holds=holds),
        waiting_times(computation, tablets, snapshot, waiting),
    )
    for found, time in enumerate(oldest):
        if found >= most or (time >= bound and found >= _CHUNK):
            if times and times[-1] == time:  # some of equal time are not counted
                times.pop()
                counts.pop()
            return Pending(count, times, counts, time)
        if times and times[-1] == time:
            counts[-1] += 1
        else:
            times.append(time)
            counts.append(1)
    return Pending(count, times, counts, ALL)


def _times(
    tablets: Tablets, snapshot: Snapshot, prefix: bytes, written: Mapping[bytes, bytes], *, holds: bool
) -> Iterator[int]:
    """Every pending timestamp, in order."""
    kinds = (KIND_WATERMARK, KIND_HOLD) if holds else (KIND_WATERMARK,)
    entries = tablets.entries(snapshot, kinds, _CHUNK)
    waiting: list[int] = []
    while chunk := list(islice(entries, _CHUNK)):
        stored = [prefix + suffix for _, _, suffix in chunk if prefix + suffix not in written]
        rows = {**dict(zip(stored, snapshot.get_each(stored), strict=True)), **written}
        for _, kind, suffix in chunk:
            state, timers, _, held, _ = row_parts(rows[prefix + suffix])
            for time in (timers if kind == KIND_WATERMARK else held).values():
                heapq.heappush(waiting, time)
            if is_window(suffix):  # its end counts once per key
                for time in timers.values():
                    for _ in range(keys_in(state) - 1):
                        heapq.heappush(waiting, time)
        last = chunk[-1][0]
        while waiting and waiting[0] < last:  # later ones are not before it
            yield heapq.heappop(waiting)
    while waiting:
        yield heapq.heappop(waiting)
