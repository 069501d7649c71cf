"""A funnel: of those who viewed a product, who put it into the cart, and who bought it, step by step.

Each step is to come within 30 minutes of the one before it; the counts are by hour.
"""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    looked, put, bought = (
        p.stream("events").filter(lambda v, step=step: v["step"] == step).key_by("user", "product")
        for step in ("view", "cart", "buy")
    )
    soon = (0, 30 * mw.MINUTE)
    carts = looked.join(put, within=soon, name="looked and put").map(lambda pair: pair["right"])
    sales = carts.key_by("user", "product").join(bought, within=soon, name="put and bought")
    reached = (
        looked.map(lambda v: "view"),
        carts.map(lambda v: "cart"),
        sales.map(lambda pair: "buy"),
    )
    steps = reached[0].union(*reached[1:]).key_by(lambda step: step)
    return steps.window(mw.windows.tumbling(mw.HOUR)).count("funnel")


INPUT = {
    "events": [
        (0, {"user": "ann", "product": "shoes", "step": "view"}),
        (60, {"user": "ann", "product": "shoes", "step": "cart"}),
        (90, {"user": "ann", "product": "shoes", "step": "buy"}),
        (100, {"user": "bob", "product": "shoes", "step": "view"}),
        (400, {"user": "bob", "product": "shoes", "step": "cart"}),
        (500, {"user": "cleo", "product": "hat", "step": "view"}),
        (3_000, {"user": "bob", "product": "shoes", "step": "buy"}),  # too late
    ]
}

RESULT = [
    {"key": "buy", "start": 0, "end": 3600000000, "count": 1},
    {"key": "cart", "start": 0, "end": 3600000000, "count": 2},
    {"key": "view", "start": 0, "end": 3600000000, "count": 3},
]
