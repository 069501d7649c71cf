"""Candles: the first, highest, lowest and last price of each symbol and minute, and the volume."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    trades = p.stream("trades").key_by("symbol").window(mw.windows.tumbling(mw.MINUTE))
    return trades.aggregate(
        "candles",
        open=mw.agg.first("price"),
        high=mw.agg.max("price"),
        low=mw.agg.min("price"),
        close=mw.agg.last("price"),
        volume=mw.agg.sum("amount"),
    )


INPUT = {
    "trades": [
        (50, {"symbol": "X", "price": 11, "amount": 2}),  # out of order
        (1, {"symbol": "X", "price": 10, "amount": 1}),
        (20, {"symbol": "X", "price": 14, "amount": 5}),
        (59, {"symbol": "X", "price": 9, "amount": 1}),
        (61, {"symbol": "X", "price": 12, "amount": 3}),
    ]
}

RESULT = [
    {"key": "X", "start": 0, "end": 60000000, "open": 10, "high": 14, "low": 9, "close": 9, "volume": 9},
    {
        "key": "X",
        "start": 60000000,
        "end": 120000000,
        "open": 12,
        "high": 12,
        "low": 12,
        "close": 12,
        "volume": 3,
    },
]
