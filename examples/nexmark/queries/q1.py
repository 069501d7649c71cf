"""Query 1, currency conversion: a map.

SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid
"""

from __future__ import annotations

import millwheel as mw

STREAMS = ("bids",)
EUROS_PER_DOLLAR = 0.908


class CurrencyConversion(mw.Computation):
    """Sends each bid on in euros."""

    def process_record(self, record: mw.Record) -> None:
        bid = record.value
        bid["price"] *= EUROS_PER_DOLLAR
        self.produce("results", bid)


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(CurrencyConversion(), inputs={"bids": mw.by("auction")}, outputs=["results"])
