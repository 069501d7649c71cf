"""A step needs few round trips to a shared store, however many keys it touches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import millwheel as mw
from millwheel.store.postgres.postgres_store import PostgresStore
from tests.store.driving import take

_STEP = 7  # look, IDs, due timers, rows, the next timers; sequencer; changes and commit


class Windows(mw.Computation):
    """Every kind of read that a step has: rows, timers that fall due, timers that follow, IDs."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer(str(record.timestamp), record.timestamp + 2000)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("out", self.state["n"])


def _pipeline(keys: int) -> mw.Pipeline:
    p = mw.Pipeline("trips")
    records = [
        mw.Record(value=0, timestamp=1000 * epoch + 500, key=f"k{key}", id=f"{epoch}/{key}")
        for epoch in range(6)
        for key in range(keys)
    ]
    p.inject("in", mw.injectors.Records(records, per_epoch=keys))
    p.add(Windows(), inputs={"in": mw.by_key}, outputs=["out"])
    return p


@pytest.fixture
def store(schema_url: str) -> Iterator[PostgresStore]:
    found = PostgresStore(schema_url)
    yield found
    found.close()


@pytest.mark.parametrize("keys", [10, 1_000, 8_000])
def test_the_round_trips_of_a_step_do_not_grow_with_its_keys(store: PostgresStore, keys: int) -> None:
    driver, executor = take(_pipeline(keys), store)
    trips = []
    fired = 0
    for _ in range(5):
        plan = driver.next_plan()
        assert plan is not None
        driver.journal.plan(plan, driver.graph)
        before = store.traffic.waits
        frames = executor.execute(plan)
        trips.append(store.traffic.waits - before)
        fired += frames[-1].reports[-1]["nodes"]["Windows"]["timers"]
        driver.run(plan, executor)  # from the checkpoints
    assert fired >= 2 * keys
    assert max(trips[1:]) <= _STEP
