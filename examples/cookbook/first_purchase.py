"""The first purchase of each customer, and how many new customers there are by day."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    first = p.stream("orders").key_by("customer").distinct("first purchases")
    return first.key_by(lambda order: "all").window(mw.windows.tumbling(mw.DAY)).count("new customers")


INPUT = {
    "orders": [
        (10, {"customer": "ann"}),
        (20, {"customer": "bob"}),
        (30, {"customer": "ann"}),
        (90_000, {"customer": "bob"}),
        (90_001, {"customer": "cleo"}),
    ]
}

RESULT = [
    {"key": "all", "start": 0, "end": 86400000000, "count": 2},
    {"key": "all", "start": 86400000000, "end": 172800000000, "count": 1},
]
