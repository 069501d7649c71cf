"""The layout of key intervals over slots (7.1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from millwheel.errors import PipelineError
from millwheel.model.keys import MOST_TABLETS, TABLETS
from millwheel.store.keyspace import A_SHARD
from millwheel.worker.plan import Interval

Cuts = Sequence[Sequence[int]]
"""A level's intervals in short: [first tablet, slot] of each, in order."""


_TABLETS_A_SLOT = 4  # at least, where a store has more than 64: so that a busy slot can give some away
_MOST_SHARDS = 256  # of a new store: each is a file, a table or a log, and several slots can share one


def tablet_count(slots: int) -> int:
    """The number of tablets of a new store.

    >>> tablet_count(64), tablet_count(100), tablet_count(1_000)
    (64, 512, 4096)
    """
    check_slots(slots)
    return TABLETS if slots <= TABLETS else min(_TABLETS_A_SLOT * _power(slots), MOST_TABLETS)


def shard_count(slots: int, tablets: int = TABLETS) -> int:
    """The number of shards of a new store: a power of two, so that all are equal.

    >>> shard_count(10), shard_count(1_000, 4_096), shard_count(1, 4_096)
    (16, 256, 16)
    """
    check_slots(slots, tablets)
    return max(min(_power(slots), _MOST_SHARDS), tablets // A_SHARD)


def _power(number: int) -> int:
    """The power of two at or above a number."""
    return 1 << (number - 1).bit_length()


def check_slots(slots: int, tablets: int = MOST_TABLETS) -> None:
    """Refuses a number of slots that is not between 1 and the number of tablets."""
    if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= MOST_TABLETS:
        raise PipelineError(f"slots is a number from 1 to {MOST_TABLETS}, not {slots!r}")
    if slots > tablets:
        raise PipelineError(
            f"the store has {tablets} tablets, so it can have {tablets} slots at most, not {slots}: copy it "
            "to one with more (millwheel store copy FROM TO --tablets NUMBER), or begin with a new store"
        )


def even_intervals(slots: int, shards: int, sequencer: int, tablets: int = TABLETS) -> tuple[Interval, ...]:
    """Divides the tablets evenly over the slots; no interval crosses a shard.

    An interval is written atomically, which only one shard can do.

    >>> [(i.first, i.last, i.slot, i.shard) for i in even_intervals(2, 2, 1)]
    [(0, 32, 0, 0), (32, 64, 1, 1)]
    >>> [(i.first, i.last, i.slot, i.shard) for i in even_intervals(3, 2, 1)]
    [(0, 21, 0, 0), (21, 32, 1, 0), (32, 43, 1, 1), (43, 64, 2, 1)]
    """
    check_slots(slots, tablets)
    cuts = [[round(slot * tablets / slots), slot] for slot in range(slots)]
    return intervals_from(cuts, shards, sequencer, tablets)


def cuts_of(intervals: Sequence[Interval]) -> Cuts:
    """The short form of a level's intervals.

    >>> cuts_of(even_intervals(2, 2, 1))
    [[0, 0], [32, 1]]
    """
    return [[interval.first, interval.slot] for interval in intervals]


def intervals_from(cuts: Cuts, shards: int, sequencer: int, tablets: int = TABLETS) -> tuple[Interval, ...]:
    """The intervals of a short form, also divided at the borders of shards.

    >>> intervals_from([[0, 0], [48, 1]], 2, 7) == (
    ...     Interval(0, 32, 0, 0, 7), Interval(32, 48, 0, 1, 7), Interval(48, 64, 1, 1, 7))
    True
    """
    per_shard = tablets // shards
    slot_of = {first: slot for first, slot in cuts}
    borders = sorted({*slot_of, *range(0, tablets + 1, per_shard)})
    found = []
    slot = 0
    for first, last in itertools.pairwise(borders):
        slot = slot_of.get(first, slot)
        found.append(Interval(first, last, slot, first // per_shard, sequencer))
    return tuple(found)
