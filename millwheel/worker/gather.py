"""Gathers what there is for a computation in a step: what has waited, what was left, what was sent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from millwheel.model.batch import RecordBatch
from millwheel.model.time import MAX_TIME
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import backlog_tablet, tablets_of
from millwheel.worker.inbox import Arrivals, backlog_range
from millwheel.worker.reorder_buffer import Waiting
from millwheel.worker.timer_index import Tablets


def take_up(
    computation: int,
    snapshot: Snapshot,
    tablets: Tablets,
    watermark: int,
    limit: int | None,
    *,
    in_order: bool,
) -> tuple[Waiting | None, int]:
    """Reads the records that have waited and are due, and says up to which watermark that is all.

    A computation that was in order and is not any more takes up all that still wait. Without a limit nothing
    is taken up.
    """
    if limit is None or not (in_order or tablets.has_waiting):
        return None, watermark
    waiting = Waiting(computation, tablets)
    if in_order:
        return waiting, waiting.load(snapshot, watermark, limit)
    waiting.load(snapshot, MAX_TIME, sys.maxsize)
    return waiting, watermark


class Opened(NamedTuple):
    """A section: its tablet, if it is of one, its stream, its records, and how many each key has."""

    tablet: int | None
    stream: str
    batch: RecordBatch
    counts: list[int] | None


def gather(
    computation: int,
    tablets: range,
    snapshot: Snapshot,
    sections: Sequence[Opened],
    waiting: Waiting | None,
) -> tuple[Arrivals, list[bytes]]:
    """The arrivals, and where in the store stands what was left of a step before.

    Where some of the sections were sent by tablet, all is laid out so.
    """
    left = list(snapshot.scan(*backlog_range(computation, tablets)[:2]))
    arrivals = Arrivals()
    if all(section.tablet is None for section in sections):
        if waiting is not None:
            waiting.add_to(arrivals)
        for _, data in left:
            arrivals.add_backlog(data)
        for section in sections:
            arrivals.add(section.batch, section.stream, section.counts)
        return arrivals, [key for key, _ in left]
    parts: dict[int, list[Opened]] = {tablet: [] for tablet in tablets}
    for section in sections:
        if section.tablet is not None:
            parts[section.tablet].append(section)
            continue
        positions: dict[int, list[int]] = {}
        for position, tablet in enumerate(tablets_of(section.batch.key_column())):
            positions.setdefault(tablet, []).append(position)
        for tablet, mine in positions.items():
            parts[tablet].append(Opened(tablet, section.stream, section.batch.take(mine), None))
    backlog = {backlog_tablet(key): data for key, data in left}
    for tablet, found in parts.items():
        arrivals.begin(tablet)
        if waiting is not None:
            waiting.add_to(arrivals, tablet)
        if tablet in backlog:
            arrivals.add_backlog(backlog[tablet])
        for section in found:
            arrivals.add(section.batch, section.stream, section.counts)
    return arrivals, [key for key, _ in left]
