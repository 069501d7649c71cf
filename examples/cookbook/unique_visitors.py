"""Unique visitors: how many by page and hour, in 4 kB for each, however many come."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    clicks = p.stream("clicks").key_by("url")
    return clicks.window(mw.windows.tumbling(mw.HOUR)).aggregate(
        "visitors", visitors=mw.agg.approx_distinct("user"), clicks=mw.agg.count()
    )


INPUT = {"clicks": [(n, {"url": "/", "user": n % 7}) for n in range(40)] + [(50, {"url": "/a", "user": 1})]}

RESULT = [
    {"key": "/", "start": 0, "end": 3600000000, "visitors": 7, "clicks": 40},
    {"key": "/a", "start": 0, "end": 3600000000, "visitors": 1, "clicks": 1},
]
