"""Query 3, local item suggestion: a join of two streams, without a window.

    SELECT P.name, P.city, P.state, A.id
    FROM auction A JOIN person P ON A.seller = P.id
    WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')

A person is kept for good, as the query demands: what they sell next year joins, too. An auction without
its seller is kept for ten minutes of event time, and then the watermark says that nobody came.
"""

from __future__ import annotations

from typing import Any

import millwheel as mw

STREAMS = ("persons", "auctions")
STATES = ("OR", "ID", "CA")
CATEGORY = 10
PATIENCE = 10 * mw.MINUTE


def local_person(record: mw.Record) -> Any:
    """The person as the key, if they live nearby."""
    return str(record.value["id"]) if record.value["state"] in STATES else mw.SKIP


def seller_of_category(record: mw.Record) -> Any:
    """The seller as the key, if the auction is of the category."""
    return str(record.value["seller"]) if record.value["category"] == CATEGORY else mw.SKIP


class LocalItems(mw.Computation):
    """Keeps a person, or the auctions that wait for them."""

    def initial_state(self) -> dict[str, Any]:
        return {"person": None, "waiting": {}}

    def process_record(self, record: mw.Record) -> None:
        value, time = record.value, record.timestamp
        if record.stream == "persons":
            self.state["person"] = [time, value["name"], value["city"], value["state"]]
            for auction, opened in self.state["waiting"].items():
                self.clear_timer(str(auction))
                self._suggest(auction, opened)
            self.state["waiting"] = {}
        elif self.state["person"] is not None:
            self._suggest(value["id"], time)
        else:
            self.state["waiting"][value["id"]] = time
            self.set_timer(str(value["id"]), time + PATIENCE + 1)

    def process_timer(self, timer: mw.Timer) -> None:
        del self.state["waiting"][int(timer.tag)]
        if not self.state["waiting"]:
            del self.state

    def _suggest(self, auction: int, opened: int) -> None:
        registered, name, city, state = self.state["person"]
        if registered <= opened + PATIENCE:
            value = {"name": name, "city": city, "state": state, "id": auction}
            self.produce("results", value, timestamp=max(registered, opened))


def add(p: mw.Pipeline) -> None:
    """Adds the query to a pipeline that has its streams."""
    p.add(
        LocalItems(),
        inputs={"persons": local_person, "auctions": seller_of_category},
        outputs=["results"],
    )
