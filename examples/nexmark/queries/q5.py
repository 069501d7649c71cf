"""Query 5, hot items: a sliding window, and a maximum over all keys.

SELECT window_end, auction, num FROM (
  SELECT auction, COUNT(*) AS num, window_end FROM HOP(bid, 2 seconds, 10 seconds)
  GROUP BY auction, window_end)
WHERE num = MAX(num) OVER (PARTITION BY window_end)
"""

from __future__ import annotations

from typing import Any

import millwheel as mw

STREAMS = ("bids",)
SLIDE = 2 * mw.SECOND
SLIDES = 5  # in a window


class BidsPerAuction(mw.Computation):
    """Keeps an auction's bids by slide; each window is the sum of its five. A record is a count of bids."""

    def initial_state(self) -> dict[int, int]:
        return {}

    def process_record(self, record: mw.Record) -> None:
        slide = record.timestamp // SLIDE
        self.state[slide] = self.state.get(slide, 0) + record.value
        self.set_timer(str(slide + 1), (slide + 1) * SLIDE)

    def process_timer(self, timer: mw.Timer) -> None:
        end = int(timer.tag)
        count = sum(self.state.get(slide, 0) for slide in range(end - SLIDES, end))
        value = {"window": timer.timestamp, "auction": int(self.key), "count": count}
        self.produce("counts", value, timestamp=timer.timestamp - 1)
        self.state.pop(end - SLIDES, None)
        if not self.state:
            del self.state
        elif min(self.state) <= end:  # the next window has one of these slides, too
            self.set_timer(str(end + 1), (end + 1) * SLIDE)


class HottestAuctions(mw.Computation):
    """Keeps the largest count of a window, and the auctions that have it; the window is the key."""

    def initial_state(self) -> dict[str, Any]:
        return {"count": 0, "auctions": []}

    def process_record(self, record: mw.Record) -> None:
        auction, count = record.value["auction"], record.value["count"]
        if count > self.state["count"]:
            self.state = {"count": count, "auctions": []}
        if count == self.state["count"]:
            self.state["auctions"].append(auction)
        self.set_timer("end", record.value["window"])

    def process_timer(self, timer: mw.Timer) -> None:
        for auction in sorted(self.state["auctions"]):
            value = {"window": timer.timestamp, "auction": auction, "count": self.state["count"]}
            self.produce("results", value, timestamp=timer.timestamp - 1)
        del self.state


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(
        BidsPerAuction(),
        inputs={"bids": mw.by("auction")},
        outputs=["counts"],
        combine=mw.combiners.Count(SLIDE),
    )
    p.add(HottestAuctions(), inputs={"counts": mw.by("window")}, outputs=["results"])
