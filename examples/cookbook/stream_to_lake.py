"""A stream to a lake: totals by shop and hour as Parquet files, each row once.

`mw.sinks.Delta` and `mw.sinks.Iceberg` take the same place where the lake has tables.
"""

from __future__ import annotations

import os
from pathlib import Path

import millwheel as mw

LAKE = Path(os.environ.get("LAKE", "lake"))


def query(p: mw.Pipeline) -> mw.Stream:
    sales = p.stream("sales").key_by("shop")
    totals = sales.window(mw.windows.tumbling(mw.HOUR)).aggregate("totals", total=mw.agg.sum("amount"))
    lake = mw.sinks.Parquet(LAKE / "totals", schema={"start": "int64", "end": "int64", "total": "int64"})
    return totals.sink(lake)


INPUT = {
    "sales": [
        (10, {"shop": "berlin", "amount": 5}),
        (20, {"shop": "paris", "amount": 7}),
        (4_000, {"shop": "berlin", "amount": 1}),
    ]
}

RESULT = [
    {"key": "berlin", "start": 0, "end": 3600000000, "total": 5},
    {"key": "paris", "start": 0, "end": 3600000000, "total": 7},
    {"key": "berlin", "start": 3600000000, "end": 7200000000, "total": 1},
]
