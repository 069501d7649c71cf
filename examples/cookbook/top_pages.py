"""Top N: the two pages with the most clicks in each minute."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    counts = p.stream("clicks").key_by("url").window(mw.windows.tumbling(mw.MINUTE)).count("clicks by page")
    return counts.top("top pages", 2, by="count", window=mw.windows.tumbling(mw.MINUTE))


INPUT = {
    "clicks": [(n, {"url": url}) for n, url in enumerate(["/a", "/b", "/a", "/c", "/b", "/a"])]
    + [(70, {"url": "/c"})]
}

RESULT = [
    {
        "start": 0,
        "end": 60000000,
        "top": [
            {"key": "/a", "start": 0, "end": 60000000, "count": 3},
            {"key": "/b", "start": 0, "end": 60000000, "count": 2},
        ],
    },
    {
        "start": 60000000,
        "end": 120000000,
        "top": [{"key": "/c", "start": 60000000, "end": 120000000, "count": 1}],
    },
]
