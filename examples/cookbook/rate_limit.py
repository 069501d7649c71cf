"""A rate limit: users with more than three requests in any ten seconds."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    requests = p.stream("requests").key_by("user")
    counts = requests.window(mw.windows.sliding(10 * mw.SECOND, mw.SECOND)).count("requests in ten seconds")
    return counts.filter(lambda v: v["count"] > 3).key_by("key").distinct("over the limit", within=mw.MINUTE)


INPUT = {
    "requests": [
        *((n, {"user": "ann"}) for n in (0, 4, 8, 12, 16)),
        *((n, {"user": "bob"}) for n in (0, 1, 2, 3, 4)),
    ]
}

RESULT = [
    {"key": "bob", "start": -6000000, "end": 4000000, "count": 4},
]
