"""Enrichment from a stream of changes: each trade with the price that was valid at its time.

`in_order` gives both streams by timestamp, so that the last price before a trade is the last one that came.
"""

from __future__ import annotations

import millwheel as mw


class AsOf(mw.Computation):
    """Keeps the last price of a symbol."""

    def process_record(self, record: mw.Record) -> None:
        value = record.value
        if value.pop("is") == "price":
            self.state["price"] = value["price"]
        else:
            self.produce("valued", {**value, "price": self.state.get("price")})


def query(p: mw.Pipeline) -> mw.Stream:
    prices, trades = p.stream("prices"), p.stream("trades")
    both = prices.map(lambda v: {**v, "is": "price"}).union(trades.map(lambda v: {**v, "is": "trade"}))
    return both.key_by("symbol").process(AsOf(), outputs=["valued"], in_order=True)


INPUT = {
    "prices": [(0, {"symbol": "X", "price": 10}), (100, {"symbol": "X", "price": 12})],
    "trades": [
        (50, {"symbol": "X", "amount": 3}),
        (100, {"symbol": "X", "amount": 1}),
        (150, {"symbol": "X", "amount": 2}),
        (60, {"symbol": "Y", "amount": 9}),
    ],
}

RESULT = [
    {"symbol": "X", "amount": 3, "price": 10},
    {"symbol": "Y", "amount": 9, "price": None},
    {"symbol": "X", "amount": 1, "price": 12},
    {"symbol": "X", "amount": 2, "price": 12},
]
