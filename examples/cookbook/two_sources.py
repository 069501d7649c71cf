"""Two sources as one: logs of an old and a new system, in one form, counted by country and city."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    old = p.stream("old").map(lambda v: {"country": v["land"].lower(), "city": v["town"]})
    new = p.stream("new").map(lambda v: v["place"])
    both = old.union(new).key_by("country", "city")
    return both.window(mw.windows.tumbling(mw.HOUR)).count("visits")


INPUT = {
    "old": [(0, {"land": "DE", "town": "Berlin"}), (10, {"land": "FR", "town": "Paris"})],
    "new": [(5, {"place": {"country": "de", "city": "Berlin"}})],
}

RESULT = [
    {"key": "de|Berlin", "start": 0, "end": 3600000000, "count": 2},
    {"key": "fr|Paris", "start": 0, "end": 3600000000, "count": 1},
]
