"""Gathers what there is for a computation in a step: what has waited, what was left, what was sent."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from millwheel.model.time import MAX_TIME
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import backlog_tablet, tablets_of
from millwheel.worker.envelope import Section
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


def gather(
    computation: int,
    tablets: range,
    snapshot: Snapshot,
    sections: Sequence[tuple[Section, str]],
    waiting: Waiting | None,
) -> tuple[Arrivals, list[bytes]]:
    """The arrivals, and where in the store stands what was left of a step before.

    Sections come with their streams. Where some of them were sent by tablet, all is laid out so.
    """
    left = list(snapshot.scan(*backlog_range(computation, tablets)[:2]))
    arrivals = Arrivals()
    if all(section.tablet is None for section, _ in sections):
        if waiting is not None:
            waiting.add_to(arrivals)
        for _, data in left:
            arrivals.add_backlog(data)
        for section, stream in sections:
            arrivals.add_section(section, stream)
        return arrivals, [key for key, _ in left]
    parts: dict[int, list[tuple[Section, str]]] = {tablet: [] for tablet in tablets}
    for section, stream in sections:
        whole = section.tablet is not None
        for part in [section] if whole else section.by_tablet(tablets_of(section.keys)):
            assert part.tablet is not None
            parts[part.tablet].append((part, stream))
    backlog = {backlog_tablet(key): data for key, data in left}
    for tablet, found in parts.items():
        arrivals.begin(tablet)
        if waiting is not None:
            waiting.add_to(arrivals, tablet)
        if tablet in backlog:
            arrivals.add_backlog(backlog[tablet])
        for part, stream in found:
            arrivals.add_section(part, stream)
    return arrivals, [key for key, _ in left]
