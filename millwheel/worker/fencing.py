"""Fencing: intervals get a new sequencer, so that nobody who had an old one writes any more (6.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from millwheel.errors import FencedError
from millwheel.model.codec import pack, unpack
from millwheel.store.base import Get, Shard, Store, read
from millwheel.store.keyspace import after, checkpoint_key, interval_key
from millwheel.worker.plan import Interval


class _Moved(Exception):
    """An interval was written between our look at it and our write."""


def fence(store: Store, intervals: Sequence[Sequence[Interval]], sequencer: int) -> None:
    """Gives every interval a new sequencer, so that no write under an old one succeeds any more.

    Intervals that an earlier layout had are fenced too: a remnant of it may still be running.
    """
    for number, shard in enumerate(store.shards):
        mine = [
            interval_key(level, interval.first)
            for level, part in enumerate(intervals, start=1)
            for interval in part
            if interval.shard == number
        ]
        _until_still(partial(_fence_shard, shard, mine, sequencer))


def refence(
    store: Store,
    was: Sequence[Sequence[Interval]],
    now: Sequence[Sequence[Interval]],
    sequencer: int,
) -> None:
    """Between two epochs: gives the intervals that change their sequencer, and those that are no more.

    The latter keep an entry that refuses their former owners, and lose their checkpoint, of an epoch that
    is committed.
    """
    for number, shard in enumerate(store.shards):
        changed, gone = [], []
        for level, (old, new) in enumerate(zip(was, now, strict=True), start=1):
            firsts = {interval.first for interval in new}
            changed += [(level, i.first) for i in new if i.shard == number and i.sequencer == sequencer]
            gone += [(level, i.first) for i in old if i.shard == number and i.first not in firsts]
        if changed or gone:
            _until_still(partial(_refence_shard, shard, changed, gone, sequencer))


def _until_still(fence: Callable[[], None]) -> None:
    while True:
        try:
            return fence()
        except _Moved:  # by the former owner, in its last moment: look again
            continue


def _fence_shard(shard: Shard, mine: Sequence[bytes], sequencer: int) -> None:
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
    """Writes entries of intervals, if they are as they were found."""

    def guard(get: Get) -> None:
        for key, old in found.items():
            now = get(key)
            if now is not None and unpack(now)[0] > sequencer:
                raise FencedError("another driver has taken the pipeline over in this moment")
            if now != old:
                raise _Moved

    shard.write([(key, pack([sequencer, epoch])) for key, epoch in epochs.items()], deletes, guard)
