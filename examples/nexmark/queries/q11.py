"""Query 11, user sessions: windows that end when a user was away for ten seconds.

    SELECT bidder, COUNT(*), window_start, window_end FROM SESSION(bid, bidder, 10 seconds)
    GROUP BY bidder, window_start, window_end

Three quarters of the bids are of one user, so pieces of sessions are made where bids are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import millwheel as mw

STREAMS = ("bids",)
GAP = 10 * mw.SECOND

Session = list[int]
"""First bid, last bid, how many."""


def joined(pieces: Iterable[Session]) -> list[Session]:
    """Sessions, in order, of pieces of them in any order."""
    found: list[Session] = []
    for first, last, count in sorted(pieces):
        if found and first - found[-1][1] < GAP:
            found[-1] = [found[-1][0], max(found[-1][1], last), found[-1][2] + count]
        else:
            found.append([first, last, count])
    return found


def pieces(key: str, records: Sequence[mw.Record]) -> list[tuple[Session, int]]:
    """What some of a user's bids say of their sessions."""
    return [(piece, piece[1]) for piece in joined([r.timestamp, r.timestamp, 1] for r in records)]


class UserSessions(mw.Computation):
    """Keeps a user's open sessions, in order; a piece may join two of them."""

    def initial_state(self) -> list[Session]:
        return []

    def process_record(self, record: mw.Record) -> None:
        self.state = joined([*self.state, record.value])
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
    p.add(UserSessions(), inputs={"bids": mw.by("bidder")}, outputs=["results"], combine=pieces)
