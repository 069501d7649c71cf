"""The winning bids, which queries 4 and 6 begin with.

SELECT A.id, A.category, A.seller, A.expires, MAX(B.price) AS final
FROM auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
GROUP BY A.id, A.category, A.seller, A.expires
"""

from __future__ import annotations

from typing import Any

import millwheel as mw

STREAMS = ("auctions", "bids")


class WinningBids(mw.Computation):
    """Keeps an open auction and the best price for it; a timer closes it when all bids are in.

    A bid may come before its auction, and waits. Once the watermark has passed it, an auction that was
    open at its time would be there: it was for one that is closed, or that opened later, and goes. So
    nothing is kept of an auction but while it is open.
    """

    def initial_state(self) -> dict[str, Any]:
        return {"auction": None, "final": 0, "waiting": [], "newest": 0}

    def process_record(self, record: mw.Record) -> None:
        state, value = self.state, record.value
        if record.stream == "auctions":
            state["auction"] = [value["category"], value["seller"], value["dateTime"], value["expires"]]
            for time, price in state["waiting"]:
                self._bid(time, price)
            state["waiting"] = []
            self.clear_timer("waiting")
            self.set_timer("close", value["expires"] + 1)
        elif state["auction"] is not None:
            self._bid(record.timestamp, value["price"])
        else:
            state["waiting"].append([record.timestamp, value["price"]])
            state["newest"] = max(state["newest"], record.timestamp)
            self.set_timer("waiting", state["newest"] + 1)

    def _bid(self, time: int, price: int) -> None:
        _, _, opens, expires = self.state["auction"]
        if opens <= time <= expires and price > self.state["final"]:
            self.state["final"] = price

    def process_timer(self, timer: mw.Timer) -> None:
        if timer.tag == "close" and self.state["final"]:
            category, seller, _, expires = self.state["auction"]
            value = {
                "auction": int(self.key),
                "category": category,
                "seller": seller,
                "final": self.state["final"],
            }
            self.produce("winning bids", value, timestamp=expires)
        del self.state


def add(p: mw.Pipeline) -> None:
    """Adds the stream of winning bids to a pipeline that has auctions and bids."""
    p.add(
        WinningBids(),
        inputs={"auctions": mw.by("id"), "bids": mw.by("auction")},
        outputs=["winning bids"],
    )
