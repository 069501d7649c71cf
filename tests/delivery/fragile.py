"""A computation that raises when a record asks it to."""

from __future__ import annotations

import millwheel as mw
from tests.computations import Hooks


def fragile(c: Hooks, record: mw.Record) -> None:
    """Changes everything there is to change, then raises for the value "bad"."""
    c.state["n"] = c.state.get("n", 0) + 1
    c.set_timer("t", 1_000)
    c.hold(record.timestamp, str(c.state["n"]))
    c.count("seen")
    c.produce("out", record.value)
    if record.value == "bad":
        raise ValueError("no good")
