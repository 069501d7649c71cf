"""Deduplication: a message that is sent again within ten minutes counts once.

The first one is passed on when the low watermark has reached it, whatever the order of arrival.
"""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    return p.stream("messages").key_by("id").distinct("once", within=10 * mw.MINUTE)


INPUT = {
    "messages": [
        (0, {"id": "m1", "text": "hello"}),
        (20, {"id": "m1", "text": "hello"}),
        (30, {"id": "m2", "text": "world"}),
        (700, {"id": "m1", "text": "hello again"}),
    ]
}

RESULT = [
    {"id": "m1", "text": "hello"},
    {"id": "m2", "text": "world"},
    {"id": "m1", "text": "hello again"},
]
