"""Fencing: a new sequencer for intervals, so that old writers fail (6.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from millwheel.errors import FencedError
from millwheel.model.codec import pack, unpack
from millwheel.store.base import Get, Shard, Store, read
from millwheel.store.keyspace import after, checkpoint_key, interval_key
from millwheel.worker.plan import Interval


class Moved(Exception):
    """An interval was written between our read and our write."""


def fence(store: Store, intervals: Sequence[Sequence[Interval]], sequencer: int) -> None:
    """Gives every interval a new sequencer, so that writes under older ones fail.

    Intervals of an earlier layout are fenced too: one of its tasks may still be running.
    """
    mine: list[list[bytes]] = [[] for _ in store.shards]
    for level, part in enumerate(intervals, start=1):
        for interval in part:
            mine[interval.shard].append(interval_key(level, interval.first))
    for shard, keys in zip(store.shards, mine, strict=True):
        _until_still(partial(fence_shard, shard, keys, sequencer))


def refence(
    store: Store,
    was: Sequence[Sequence[Interval]],
    now: Sequence[Sequence[Interval]],
    sequencer: int,
) -> None:
    """Between two epochs: fences the intervals that change, and those that end.

    The latter keep an entry that refuses their former owners, and lose their checkpoint, which is of a
    committed epoch.
    """
    changed: list[list[tuple[int, int]]] = [[] for _ in store.shards]
    gone: list[list[tuple[int, int]]] = [[] for _ in store.shards]
    for level, (old, new) in enumerate(zip(was, now, strict=True), start=1):
        firsts = {interval.first for interval in new}
        for interval in new:
            if interval.sequencer == sequencer:
                changed[interval.shard].append((level, interval.first))
        for interval in old:
            if interval.first not in firsts:
                gone[interval.shard].append((level, interval.first))
    for shard, new_ones, old_ones in zip(store.shards, changed, gone, strict=True):
        if new_ones or old_ones:
            _until_still(partial(_refence_shard, shard, new_ones, old_ones, sequencer))


def _until_still(fence: Callable[[], None]) -> None:
    while True:
        try:
            return fence()
        except Moved:  # by the former owner, at the last moment: read again
            continue


def fence_shard(shard: Shard, mine: Sequence[bytes], sequencer: int) -> None:
    """Gives every interval of a shard a new sequencer."""
    prefix = interval_key(0, 0)[:1]
    found: dict[bytes, bytes | None] = read(
        shard, lambda snapshot: dict(snapshot.scan(prefix, after(prefix)))
    )
    for key in mine:
        found.setdefault(key, None)
    epochs = {key: _epoch(old) for key, old in found.items()}
    _write_fence(shard, found, epochs, sequencer)


def _refence_shard(
    shard: Shard, changed: Sequence[tuple[int, int]], gone: Sequence[tuple[int, int]], sequencer: int
) -> None:
    keys = [interval_key(*place) for place in (*changed, *gone)]
    values = read(shard, lambda snapshot: snapshot.get_each(keys))
    found = dict(zip(keys, values, strict=True))
    epochs = {key: _epoch(old) for key, old in found.items()}
    epochs |= {interval_key(*place): 0 for place in gone}
    _write_fence(shard, found, epochs, sequencer, [checkpoint_key(*place) for place in gone])


def _epoch(state: bytes | None) -> int:
    return 0 if state is None else int(unpack(state)[1])


def _write_fence(
    shard: Shard,
    found: dict[bytes, bytes | None],
    epochs: dict[bytes, int],
    sequencer: int,
    deletes: Sequence[bytes] = (),
) -> None:
    """Writes entries of intervals, if they have not changed since they were read."""

    def guard(get: Get) -> None:
        for key, old in found.items():
            now = get(key)
            if now is not None and unpack(now)[0] > sequencer:
                raise FencedError("another driver has taken over the pipeline at the same moment")
            if now != old:
                raise Moved

    shard.write([(key, pack([sequencer, epoch])) for key, epoch in epochs.items()], deletes, guard)
