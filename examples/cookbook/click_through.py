"""A click-through rate: by ad and hour, of the times it was shown.

A click counts for the ad that was shown up to a minute before it.
"""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    shown, clicked = p.stream("shown").key_by("view"), p.stream("clicked").key_by("view")
    both = shown.join(clicked, within=(0, mw.MINUTE), how="left", name="shown and clicked")
    seen = both.map(lambda pair: {"ad": pair["left"]["ad"], "clicked": int(pair["right"] is not None)})
    return (
        seen.key_by("ad")
        .window(mw.windows.tumbling(mw.HOUR))
        .aggregate("rates", shown=mw.agg.count(), rate=mw.agg.mean("clicked"))
    )


INPUT = {
    "shown": [(n, {"view": n, "ad": "shoes" if n % 2 else "hats"}) for n in range(8)],
    "clicked": [(20, {"view": 1}), (30, {"view": 2}), (40, {"view": 3}), (90, {"view": 5})],
}

RESULT = [
    {"key": "hats", "start": 0, "end": 3600000000, "shown": 4, "rate": 0.25},
    {"key": "shoes", "start": 0, "end": 3600000000, "shown": 4, "rate": 0.5},
]
