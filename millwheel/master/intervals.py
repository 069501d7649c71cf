"""The layout of key intervals over slots (7.1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from millwheel.errors import PipelineError
from millwheel.model.keys import TABLETS
from millwheel.worker.plan import Interval

Cuts = Sequence[Sequence[int]]
"""A level's intervals in short: [first tablet, slot] of each, in order; one ends where the next begins."""


def shard_count(slots: int) -> int:
    """How many shards a new store has: a power of two, so that each holds the same run of tablets."""
    check_slots(slots)
    return 1 << (slots - 1).bit_length()


def check_slots(slots: int) -> None:
    """There are slots for whole tablets only."""
    if not isinstance(slots, int) or not 1 <= slots <= TABLETS:
        raise PipelineError(f"slots is a number from 1 to {TABLETS}, not {slots!r}")


def even_intervals(slots: int, shards: int, sequencer: int) -> tuple[Interval, ...]:
    """Cuts the tablets evenly over the slots; no interval crosses a shard, where it could not be
    written atomically.

    >>> [(i.first, i.last, i.slot, i.shard) for i in even_intervals(2, 2, 1)]
    [(0, 32, 0, 0), (32, 64, 1, 1)]
    >>> [(i.first, i.last, i.slot, i.shard) for i in even_intervals(3, 2, 1)]
    [(0, 21, 0, 0), (21, 32, 1, 0), (32, 43, 1, 1), (43, 64, 2, 1)]
    """
    check_slots(slots)
    per_shard = TABLETS // shards
    cuts = sorted(
        {round(slot * TABLETS / slots) for slot in range(slots + 1)}
        | {shard * per_shard for shard in range(shards + 1)}
    )
    slot_of = [0] * TABLETS
    for slot in range(slots):
        for tablet in range(round(slot * TABLETS / slots), round((slot + 1) * TABLETS / slots)):
            slot_of[tablet] = slot
    return tuple(
        Interval(first, last, slot_of[first], first // per_shard, sequencer)
        for first, last in itertools.pairwise(cuts)
    )


def cuts_of(intervals: Sequence[Interval]) -> Cuts:
    """The short form of a level's intervals.

    >>> cuts_of(even_intervals(2, 2, 1))
    [[0, 0], [32, 1]]
    """
    return [[interval.first, interval.slot] for interval in intervals]


def intervals_from(cuts: Cuts, shards: int, sequencer: int) -> tuple[Interval, ...]:
    """The intervals that a short form stands for; they are cut at the borders of shards, too.

    >>> intervals_from([[0, 0], [48, 1]], 2, 7) == (
    ...     Interval(0, 32, 0, 0, 7), Interval(32, 48, 0, 1, 7), Interval(48, 64, 1, 1, 7))
    True
    """
    per_shard = TABLETS // shards
    slot_of = {first: slot for first, slot in cuts}
    borders = sorted({*slot_of, *range(0, TABLETS + 1, per_shard)})
    found = []
    slot = 0
    for first, last in itertools.pairwise(borders):
        slot = slot_of.get(first, slot)
        found.append(Interval(first, last, slot, first // per_shard, sequencer))
    return tuple(found)
