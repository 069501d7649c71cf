"""Query 11, user sessions: windows that end when a user was away for ten seconds.

SELECT bidder, COUNT(*), window_start, window_end FROM SESSION(bid, bidder, 10 seconds)
GROUP BY bidder, window_start, window_end
"""

from __future__ import annotations

import millwheel as mw

STREAMS = ("bids",)
GAP = 10 * mw.SECOND


class UserSessions(mw.Computation):
    """Keeps a user's open sessions, in order; a bid may join two of them."""

    def initial_state(self) -> list[list[int]]:
        return []

    def process_record(self, record: mw.Record) -> None:
        first = last = record.timestamp
        count = 1
        apart = []
        for session in self.state:
            begin, end, bids = session
            if begin - GAP < record.timestamp < end + GAP:
                first, last, count = min(first, begin), max(last, end), count + bids
            else:
                apart.append(session)
        self.state = sorted([*apart, [first, last, count]])
        self._wait()

    def process_timer(self, timer: mw.Timer) -> None:
        first, last, count = self.state.pop(0)
        value = {"bidder": int(self.key), "start": first, "end": last + GAP, "count": count}
        self.produce("results", value, timestamp=timer.timestamp - 1)
        if self.state:
            self._wait()
        else:
            del self.state

    def _wait(self) -> None:
        self.set_timer("over", self.state[0][1] + GAP)


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(UserSessions(), inputs={"bids": mw.by("bidder")}, outputs=["results"])
