"""A computation that was taken out at the end of time, and comes back while event time goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.ending import Start
from millwheel.store.lmdb.lmdb_store import LmdbStore
from tests.computations import Idle
from tests.days.mortal import Died
from tests.store.driving import run, run_to_the_end, take

MONDAY = [mw.Record(key="k", value=n, timestamp=n) for n in range(5)]
TUESDAY = [mw.Record(key="k", value=n, timestamp=n) for n in range(5, 15)]


def _pipeline(records: list[mw.Record], *names: str) -> mw.Pipeline:
    p = mw.Pipeline("back")
    p.inject("in", mw.injectors.Records(records, per_epoch=5))
    for name in names:
        p.add(Idle(), name=name, inputs={"in": mw.by_key}, late="drop")
    return p


def test_what_it_gets_then_is_not_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(driver: Driver) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "conclude", dies)
        with pytest.raises(Died):
            run(_pipeline(MONDAY, "A", "B"), LmdbStore(tmp_path, shards=1))
    store = LmdbStore(tmp_path, shards=1)
    driver, executor = take(_pipeline(MONDAY + TUESDAY, "A"), store, start=Start.RUN)
    plan = driver.next_plan_to_the_end()
    assert plan is not None
    driver.run(plan, executor)
    driver.let_go()
    driver, executor = take(_pipeline(MONDAY + TUESDAY, "A", "B"), store, start=Start.CHANGE)
    report = run_to_the_end(driver, executor)
    driver.close()
    assert (report.records["B"], report.dropped["B"]) == (5, 0)
