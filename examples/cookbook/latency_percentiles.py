"""Percentiles: the median and the 99th percentile of the latency of each endpoint, by minute."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    requests = p.stream("requests").key_by("endpoint")
    return requests.window(mw.windows.tumbling(mw.MINUTE)).aggregate(
        "latency",
        median=mw.agg.quantile("ms", 0.5),
        p99=mw.agg.quantile("ms", 0.99),
        worst=mw.agg.top("ms", 3),
    )


INPUT = {"requests": [(n % 60, {"endpoint": "/api", "ms": n}) for n in range(101)]}

RESULT = [
    {"key": "/api", "start": 0, "end": 60000000, "median": 50, "p99": 99, "worst": [100, 99, 98]},
]
