"""Query 7, highest bid: a maximum over all keys, in windows of ten seconds.

    SELECT auction, bidder, price, window_end FROM TUMBLE(bid, 10 seconds)
    WHERE price = MAX(price) OVER (PARTITION BY window_end)

The window is the key, and every bid belongs to it. So a combiner finds the highest where they are read, and
hardly any is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import millwheel as mw

STREAMS = ("bids",)
WINDOW = 10 * mw.SECOND


def window(record: mw.Record) -> str:
    """The end of the window as the key."""
    return str((record.timestamp // WINDOW + 1) * WINDOW)


def highest(key: str, records: Sequence[mw.Record]) -> list[tuple[Any, int]]:
    """Those of a window's bids that may win."""
    most = max(record.value["price"] for record in records)
    return [(record.value, record.timestamp) for record in records if record.value["price"] == most]


class HighestBid(mw.Computation):
    """Keeps the highest bids of a window; there may be several of the same price."""

    def initial_state(self) -> dict[str, Any]:
        return {"price": 0, "bids": []}

    def process_record(self, record: mw.Record) -> None:
        bid = record.value
        if bid["price"] > self.state["price"]:
            self.state = {"price": bid["price"], "bids": []}
        if bid["price"] == self.state["price"]:
            self.state["bids"].append([bid["auction"], bid["bidder"]])
        self.set_timer("end", int(self.key))

    def process_timer(self, timer: mw.Timer) -> None:
        for auction, bidder in sorted(self.state["bids"]):
            value = {"auction": auction, "bidder": bidder, "price": self.state["price"]}
            self.produce("results", {"window": timer.timestamp, **value}, timestamp=timer.timestamp - 1)
        del self.state


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(HighestBid(), inputs={"bids": window}, outputs=["results"], combine=highest)
