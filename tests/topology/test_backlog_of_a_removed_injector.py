"""Records with IDs wait in a backlog when their injector is taken out: they are processed all the same."""

from __future__ import annotations

import pytest

import millwheel as mw
from tests.computations import Hooks
from tests.topology.changing import Changing, Log

pytestmark = pytest.mark.usefixtures("on_each_store")


def _count(c: Hooks, record: mw.Record) -> None:
    c.count("records")


class World:
    def __init__(self, *, other: bool) -> None:
        self.gone, self.kept, self.other = Log(), Log(), other
        # With no time at all a step takes up one key, and leaves the records of the others.
        self.running = Changing(self.pipeline(gone=True), step_budget=0.0, slots=1)

    def pipeline(self, *, gone: bool) -> mw.Pipeline:
        p = mw.Pipeline("backlog")
        inputs = {"kept": mw.by_key}
        p.inject("kept", self.kept)
        if gone:
            p.inject("gone", self.gone)
            inputs["gone"] = mw.by_key
        if not self.other:  # a computation that then has no injector behind it at all
            p.add(Hooks(), name="Before", inputs={"kept": mw.by_key}, outputs=["made"])
            inputs["made"] = inputs.pop("kept")
        p.add(Hooks(_count), name="C", inputs=inputs)
        return p


@pytest.mark.parametrize("other", [True, False], ids=["with another injector", "with no other injector"])
def test_they_are_processed_once_by_this_driver_and_by_the_next(other: bool) -> None:
    world = World(other=other)
    running = world.running
    for _ in range(2):
        world.gone.append(*(mw.Record(value=n, timestamp=1, key=f"k{n}", id=n) for n in range(20)))
    running.epoch()
    assert running.driver.authority.left
    running.apply(world.pipeline(gone=False))
    assert running.driver.authority.left
    running.epoch()
    running.start(world.pipeline(gone=False))
    running.settle()
    assert not running.driver.authority.left
    assert running.driver.tally.totals.value["user"] == {"records": 20}
    assert running.driver.tally.totals.value["duplicates"]["C"] == 20
