"""Query 0, pass through: what a record costs that is only carried.

SELECT auction, bidder, price, dateTime, extra FROM bid
"""

from __future__ import annotations

import millwheel as mw

STREAMS = ("bids",)


class PassThrough(mw.Computation):
    """Sends each bid on."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("results", record.value)


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(PassThrough(), inputs={"bids": mw.by("auction")}, outputs=["results"])
