"""A missing heartbeat: a machine that was silent for 30 seconds.

A session ends when nothing came for its gap: so its end is the moment at which the silence is known.
"""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    beats = p.stream("heartbeats").key_by("machine")
    silent = beats.window(mw.windows.session(30 * mw.SECOND)).aggregate("alive", last=mw.agg.last("at"))
    return silent.map(lambda v: {"machine": v["key"], "last seen": v["last"], "missing since": v["end"]})


INPUT = {
    "heartbeats": [
        *((n, {"machine": "a", "at": n}) for n in range(0, 100, 10)),
        *((n, {"machine": "b", "at": n}) for n in (0, 10, 20, 70, 80, 90)),
    ]
}

RESULT = [
    {"machine": "b", "last seen": 20, "missing since": 50000000},
    {"machine": "b", "last seen": 90, "missing since": 120000000},
    {"machine": "a", "last seen": 90, "missing since": 120000000},
]
