"""Query 6, average selling price by seller: the last ten of each.

    SELECT seller, AVG(final) OVER (PARTITION BY seller ORDER BY expires, auction
                                    ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)
    FROM (winning bids)

"The last ten" needs an order: auctions wait for the watermark to pass their end, and are taken by then.
"""

from __future__ import annotations

from typing import Any

import millwheel as mw
from examples.nexmark.queries import winning

STREAMS = winning.STREAMS
LAST = 10


class SellerAverage(mw.Computation):
    """Keeps the last ten prices of a seller, and the auctions that are not in order yet."""

    def initial_state(self) -> dict[str, Any]:
        return {"last": [], "closed": {}}

    def process_record(self, record: mw.Record) -> None:
        sale = [record.value["auction"], record.value["final"]]
        self.state["closed"].setdefault(record.timestamp, []).append(sale)
        self.set_timer(str(record.timestamp), record.timestamp + 1)

    def process_timer(self, timer: mw.Timer) -> None:
        last = self.state["last"]
        for auction, final in sorted(self.state["closed"].pop(int(timer.tag))):
            last.append(final)
            del last[:-LAST]
            value = {"seller": int(self.key), "auction": auction, "average": sum(last) / len(last)}
            self.produce("results", value, timestamp=timer.timestamp - 1)


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    winning.add(p)
    p.add(SellerAverage(), inputs={"winning bids": mw.by("seller")}, outputs=["results"])
