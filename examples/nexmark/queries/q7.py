"""Query 7, highest bid: a maximum over all keys, in windows of ten seconds.

    SELECT auction, bidder, price, window_end FROM TUMBLE(bid, 10 seconds)
    WHERE price = MAX(price) OVER (PARTITION BY window_end)

One key for a window would have every bid come to one place. So each of sixteen shares finds its own
highest bids first, and a window is the key of what they found.
"""

from __future__ import annotations

from typing import Any

import millwheel as mw

STREAMS = ("bids",)
WINDOW = 10 * mw.SECOND
SHARES = 16


def share(record: mw.Record) -> str:
    """Any even spread will do."""
    return str(record.value["price"] % SHARES)


def highest(bids: list[list[int]], bid: list[int]) -> list[list[int]]:
    """The bids of the highest price, with one more to choose from; a bid begins with its price."""
    if not bids or bid[0] > bids[0][0]:
        return [bid]
    return [*bids, bid] if bid[0] == bids[0][0] else bids


class HighestOfShare(mw.Computation):
    """Keeps the highest bids of a share, by window."""

    def initial_state(self) -> dict[int, list[list[int]]]:
        return {}

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // WINDOW
        bid = [record.value["price"], record.value["auction"], record.value["bidder"]]
        self.state[window] = highest(self.state.get(window, []), bid)
        self.set_timer(str(window), (window + 1) * WINDOW)

    def process_timer(self, timer: mw.Timer) -> None:
        for bid in self.state.pop(int(timer.tag)):
            value = {"window": timer.timestamp, "bid": bid}
            self.produce("highest of shares", value, timestamp=timer.timestamp - 1)


class HighestBid(mw.Computation):
    """Keeps the highest bids of all shares; the window is the key."""

    def initial_state(self) -> list[list[int]]:
        return []

    def process_record(self, record: mw.Record) -> None:
        self.state = highest(self.state, record.value["bid"])
        self.set_timer("end", record.value["window"])

    def process_timer(self, timer: mw.Timer) -> None:
        for price, auction, bidder in sorted(self.state):
            value: dict[str, Any] = {"auction": auction, "bidder": bidder, "price": price}
            self.produce("results", {"window": timer.timestamp, **value}, timestamp=timer.timestamp - 1)
        del self.state


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(HighestOfShare(), inputs={"bids": share}, outputs=["highest of shares"])
    p.add(HighestBid(), inputs={"highest of shares": mw.by("window")}, outputs=["results"])
