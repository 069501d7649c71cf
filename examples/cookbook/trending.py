"""Trending: words that come at least three times as often as in the minute before.

The counts of a word come in order of time, so a downstream computation needs to keep the last one only.
"""

from __future__ import annotations

import millwheel as mw


class Jump(mw.Computation):
    """Keeps the last count of a word, and when it was."""

    def process_record(self, record: mw.Record) -> None:
        now, before = record.value, self.state
        follows = before.get("end") == now["start"]
        if follows and now["count"] >= 3 * before["count"]:
            value = {"word": self.key, "from": before["count"], "to": now["count"]}
            self.produce("trending", value)
        self.state = {"end": now["end"], "count": now["count"]}


def query(p: mw.Pipeline) -> mw.Stream:
    words = p.stream("posts").flat_map(lambda post: post["text"].split()).key_by(lambda word: word)
    counts = words.window(mw.windows.tumbling(mw.MINUTE)).count("words by minute")
    return counts.key_by("key").process(Jump(), outputs=["trending"], in_order=True)


INPUT = {
    "posts": [
        (0, {"text": "rain rain sun"}),
        (60, {"text": "sun sun sun"}),
        (70, {"text": "rain sun"}),
        (200, {"text": "sun"}),
    ]
}

RESULT = [
    {"word": "sun", "from": 1, "to": 4},
]
