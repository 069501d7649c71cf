"""Query 12, windows of processing time: what a user bid in ten seconds of the wall clock.

    SELECT bidder, COUNT(*), window_start, window_end FROM TUMBLE(bid, PROCTIME(), 10 seconds)
    GROUP BY bidder, window_start, window_end

What counts is when a bid is processed, so two runs differ; every bid is in one window all the same. A run
that ends does not wait for the wall clock: a timer at the end of event time closes what is open then.
Bids of an epoch are processed at one time, so they are counted where they are read.
"""

from __future__ import annotations

import millwheel as mw

STREAMS = ("bids",)
WINDOW = 10 * mw.SECOND


class BidsPerMoment(mw.Computation):
    """Keeps a user's bids by window of wall time. A record is a count of bids."""

    def initial_state(self) -> dict[int, int]:
        return {}

    def process_record(self, record: mw.Record) -> None:
        window = self.now // WINDOW
        self.state[window] = self.state.get(window, 0) + record.value
        self.set_timer("over", (min(self.state) + 1) * WINDOW, mw.WALL)
        self.set_timer("end of input", mw.MAX_TIME)

    def process_timer(self, timer: mw.Timer) -> None:
        for window in sorted(self.state):
            if timer.tag == "over" and (window + 1) * WINDOW > timer.timestamp:
                self.set_timer("over", (window + 1) * WINDOW, mw.WALL)
                return
            value = {"bidder": int(self.key), "start": window * WINDOW, "count": self.state.pop(window)}
            self.produce("results", value, timestamp=(window + 1) * WINDOW - 1)
        del self.state
        self.clear_timer("over")
        self.clear_timer("end of input")


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(
        BidsPerMoment(),
        inputs={"bids": mw.by("bidder")},
        outputs=["results"],
        combine=mw.combiners.Count(None),
    )
