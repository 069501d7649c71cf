"""Feeds a recipe of the cookbook in the harness, record by record, with the clock of its input."""

from __future__ import annotations

from typing import Any

import millwheel as mw
from examples.cookbook import pipeline, recipe


def cooked(name: str) -> list[Any]:
    """What comes out of a recipe, in order."""
    found, sink = recipe(name), mw.sinks.Collect()
    h = mw.testing.Harness(pipeline(name, sink))
    sent = [(stream, at * mw.SECOND, value) for stream, rows in found.INPUT.items() for at, value in rows]
    late = getattr(found, "LATE", False)
    if not late:
        sent.sort(key=lambda row: row[1])
    for number, (stream, at, value) in enumerate(sent):
        with h.epoch():
            h.advance_wall(at)
            h.send(stream, value, at)
            for each in found.INPUT:
                coming = [time for other, time, _ in sent[number + 1 :] if other == each]
                h.advance(each, at if late else min(coming, default=at))
    h.drain()
    return [record.value for record in sink.records]
