"""Query 2, selection: a filter.

    SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0

The filter is the key extractor: a bid that is not wanted is not sent anywhere.
"""

from __future__ import annotations

from typing import Any

import millwheel as mw

STREAMS = ("bids",)
EVERY = 123


def wanted(record: mw.Record) -> Any:
    """The auction as the key, of every 123rd one."""
    auction = record.value["auction"]
    return mw.SKIP if auction % EVERY else str(auction)


class Selection(mw.Computation):
    """Sends on what is left of a bid."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("results", {"auction": record.value["auction"], "price": record.value["price"]})


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(Selection(), inputs={"bids": wanted}, outputs=["results"])
