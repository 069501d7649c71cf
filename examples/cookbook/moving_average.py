"""A moving average: of five minutes, every minute."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    readings = p.stream("readings").key_by("sensor")
    return readings.window(mw.windows.sliding(5 * mw.MINUTE, mw.MINUTE)).aggregate(
        "averages", average=mw.agg.mean("celsius"), readings=mw.agg.count()
    )


INPUT = {
    "readings": [
        (30, {"sensor": "s", "celsius": 20.0}),
        (90, {"sensor": "s", "celsius": 22.0}),
        (200, {"sensor": "s", "celsius": 27.0}),
    ]
}

RESULT = [
    {"key": "s", "start": -240000000, "end": 60000000, "average": 20.0, "readings": 1},
    {"key": "s", "start": -180000000, "end": 120000000, "average": 21.0, "readings": 2},
    {"key": "s", "start": -120000000, "end": 180000000, "average": 21.0, "readings": 2},
    {"key": "s", "start": -60000000, "end": 240000000, "average": 23.0, "readings": 3},
    {"key": "s", "start": 0, "end": 300000000, "average": 23.0, "readings": 3},
    {"key": "s", "start": 60000000, "end": 360000000, "average": 24.5, "readings": 2},
    {"key": "s", "start": 120000000, "end": 420000000, "average": 27.0, "readings": 1},
    {"key": "s", "start": 180000000, "end": 480000000, "average": 27.0, "readings": 1},
]
