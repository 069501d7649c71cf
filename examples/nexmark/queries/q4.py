"""Query 4, average price for a category: a join, an aggregate, and an aggregate of that.

    SELECT category, AVG(final) FROM (winning bids) GROUP BY category

The average as it stands whenever auctions of the category have closed. They may come out of order: each
waits for the watermark to pass its end, so that every average is that of all auctions closed by then.
"""

from __future__ import annotations

from typing import Any

import millwheel as mw
from examples.nexmark.queries import winning

STREAMS = winning.STREAMS


class CategoryAverage(mw.Computation):
    """Keeps the sum and the number of a category's closed auctions."""

    def initial_state(self) -> dict[str, Any]:
        return {"sum": 0, "count": 0, "closed": {}}

    def process_record(self, record: mw.Record) -> None:
        self.state["closed"].setdefault(record.timestamp, []).append(record.value["final"])
        self.set_timer(str(record.timestamp), record.timestamp + 1)

    def process_timer(self, timer: mw.Timer) -> None:
        finals = self.state["closed"].pop(int(timer.tag))
        self.state["sum"] += sum(finals)
        self.state["count"] += len(finals)
        average = self.state["sum"] / self.state["count"]
        value = {"category": int(self.key), "time": int(timer.tag), "average": average}
        self.produce("results", value, timestamp=timer.timestamp - 1)


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    winning.add(p)
    p.add(CategoryAverage(), inputs={"winning bids": mw.by("category")}, outputs=["results"])
