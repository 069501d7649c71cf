"""Sessionisation: the visits of each user, with what was spent and how many pages were seen.

A visit ends when the user was away for 30 minutes.
"""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    clicks = p.stream("clicks").key_by("user")
    return clicks.window(mw.windows.session(30 * mw.MINUTE)).aggregate(
        "visits", clicks=mw.agg.count(), pages=mw.agg.distinct("url"), spent=mw.agg.sum("price")
    )


INPUT = {
    "clicks": [
        (0, {"user": "ann", "url": "/", "price": 0}),
        (600, {"user": "ann", "url": "/shoes", "price": 0}),
        (1_900, {"user": "ann", "url": "/shoes", "price": 40}),
        (2_000, {"user": "bob", "url": "/", "price": 0}),
        (4_000, {"user": "ann", "url": "/", "price": 0}),
    ]
}

RESULT = [
    {"key": "ann", "start": 0, "end": 3700000000, "clicks": 3, "pages": 2, "spent": 40},
    {"key": "bob", "start": 2000000000, "end": 3800000000, "clicks": 1, "pages": 1, "spent": 0},
    {"key": "ann", "start": 4000000000, "end": 5800000000, "clicks": 1, "pages": 1, "spent": 0},
]
