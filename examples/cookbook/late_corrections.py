"""Late corrections: totals come at the end of a minute, and again for each late record of the next hour.

A consumer keeps the row with the largest revision of each key and window.
"""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    sales = p.stream("sales").key_by("shop")
    totals = sales.window(mw.windows.tumbling(mw.MINUTE), lateness=mw.HOUR)
    return totals.aggregate("totals", total=mw.agg.sum("amount"))


INPUT = {
    "sales": [
        (10, {"shop": "berlin", "amount": 5}),
        (20, {"shop": "berlin", "amount": 7}),
        (130, {"shop": "berlin", "amount": 1}),
        (30, {"shop": "berlin", "amount": 100}),  # late: the first minute is emitted again
    ]
}

RESULT = [
    {"key": "berlin", "start": 0, "end": 60000000, "total": 12, "revision": 0},
    {"key": "berlin", "start": 0, "end": 60000000, "total": 112, "revision": 1},
    {"key": "berlin", "start": 120000000, "end": 180000000, "total": 1, "revision": 0},
]


LATE = True
