"""Query 8, monitor new users: a join of two streams in windows of ten seconds.

SELECT P.id, P.name, P.window_start FROM TUMBLE(person, 10 seconds) P
JOIN (SELECT DISTINCT seller, window_start FROM TUMBLE(auction, 10 seconds)) A
  ON P.id = A.seller AND P.window_start = A.window_start
"""

from __future__ import annotations

from typing import Any

import millwheel as mw

STREAMS = ("persons", "auctions")
WINDOW = 10 * mw.SECOND


class NewSellers(mw.Computation):
    """Keeps, by window, whether a person registered and whether they sold."""

    def initial_state(self) -> dict[int, Any]:
        return {}

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // WINDOW
        seen = self.state.setdefault(window, {})
        if record.stream == "persons":
            seen["name"] = record.value["name"]
        else:
            seen["sold"] = True
        self.set_timer(str(window), (window + 1) * WINDOW)

    def process_timer(self, timer: mw.Timer) -> None:
        seen = self.state.pop(int(timer.tag))
        if len(seen) == 2:
            value = {"id": int(self.key), "name": seen["name"], "window": timer.timestamp - WINDOW}
            self.produce("results", value, timestamp=timer.timestamp - 1)
        if not self.state:
            del self.state


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(NewSellers(), inputs={"persons": mw.by("id"), "auctions": mw.by("seller")}, outputs=["results"])
