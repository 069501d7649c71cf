"""Early results: the total of a day, every ten seconds of wall time while it grows."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    sales = p.stream("sales").key_by("shop")
    return sales.window(mw.windows.tumbling(mw.DAY), early=10 * mw.SECOND).aggregate(
        "day so far", total=mw.agg.sum("amount")
    )


INPUT = {
    "sales": [
        (10, {"shop": "berlin", "amount": 5}),
        (20, {"shop": "berlin", "amount": 7}),
        (90, {"shop": "berlin", "amount": 1}),
    ]
}

RESULT = [
    {"key": "berlin", "start": 0, "end": 86400000000, "total": 12, "revision": 0},
    {"key": "berlin", "start": 0, "end": 86400000000, "total": 13, "revision": 1},
]
