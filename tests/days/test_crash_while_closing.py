"""A run dies at each of its writes, while it reads, drains and closes; the next day is right after it."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.master.ending import Start
from millwheel.store.base import Store
from millwheel.store.memory import MemoryStore
from millwheel.store.tools.check import check
from tests.computations import Hooks, Windower
from tests.days.mortal import Died, Mortal
from tests.store.driving import run, run_to_the_end, take

DUE_LIMIT = 1
KEYS = ("ash", "beech", "cedar", "elm", "fir", "oak")
MONDAY = [mw.Record(value={"k": KEYS[n % 6]}, timestamp=n, id=n) for n in range(25)]
TUESDAY = [mw.Record(value={"k": KEYS[n % 6]}, timestamp=n, id=n) for n in range(25, 48)]
OTHERS = [mw.Record(value={"k": "pine"}, timestamp=n, id=n) for n in range(0, 12, 3)]
LATER = [mw.Record(value={"k": "pine"}, timestamp=n, id=n) for n in range(12, 40, 3)]


class Out:
    """Where the days of one store leave what they give; a driver that died left nothing in it that counts."""

    def __init__(self) -> None:
        self.windows, self.wide = mw.sinks.Collect(), mw.sinks.Collect()

    def counts(self) -> tuple[list[tuple[str, int, int]], int, int]:
        windows = sorted((r.key, r.value["window"], r.value["count"]) for r in self.windows.records)
        return windows, self._sum(self.windows), self._sum(self.wide)

    def _sum(self, sink: mw.sinks.Collect) -> int:
        return sum(record.value["count"] for record in sink.records)


def _hold(c: Hooks, record: mw.Record) -> None:
    if record.value["count"] == 1:
        c.hold(record.timestamp)  # for ever


def _pipeline(out: Out, trees: list[mw.Record], others: list[mw.Record]) -> mw.Pipeline:
    """Two injectors that end one after the other, two levels, and holds that nobody releases."""
    p = mw.Pipeline("days")
    p.inject("trees", mw.injectors.Records(trees, per_epoch=24))
    p.inject("others", mw.injectors.Records(others))
    inputs = {"trees": mw.by("k"), "others": mw.by("k")}
    p.add(Windower(size=10, stamp=-1), inputs=inputs, outputs=["windows"], late="drop")
    p.add(Hooks(_hold), name="Holder", inputs={"windows": mw.by_key}, late="drop")
    p.add(
        Windower("wide", size=20, stamp=-1),
        name="Wide",
        inputs={"windows": lambda r: "all"},
        outputs=["wide"],
        late="drop",
    )
    p.add(Windower("own", size=10), name="Own", inputs={"others": mw.by("k")}, outputs=["own"], late="drop")
    p.sink("windows", out.windows)
    p.sink("wide", out.wide)
    return p


def _day(store: Store, out: Out, *, tuesday: bool) -> mw.Report:
    trees, others = MONDAY + TUESDAY * tuesday, OTHERS + LATER * tuesday
    return run(_pipeline(out, trees, others), store, slots=4, due_limit=DUE_LIMIT)


def _monday_dies(at: int, *, made: bool) -> tuple[MemoryStore, Out, bool]:
    """Monday, up to a write; and whether it came to its end before."""
    store, out = MemoryStore(4), Out()
    mortal = Mortal(store, at, made=made)
    driver, executor = take(
        _pipeline(out, MONDAY, OTHERS),
        mortal,
        slots=4,
        due_limit=DUE_LIMIT,
        start=Start.RUN,
        owner="the victim",
    )
    try:
        run_to_the_end(driver, executor)
        return store, out, False
    except Died:
        return store, out, True
    finally:
        store.close()


def _deaths() -> list[int]:
    """The writes of a whole run behind those that its driver makes as it starts."""
    store = Mortal(MemoryStore(4), 0, made=True)
    driver, executor = take(
        _pipeline(Out(), MONDAY, OTHERS), store, slots=4, due_limit=DUE_LIMIT, start=Start.RUN
    )
    first = store.writes
    run_to_the_end(driver, executor)
    return list(range(first + 1, store.writes + 1))


DEATHS = _deaths()


def test_a_run_of_many_writes_is_tried() -> None:
    assert len(DEATHS) > 40  # of many epochs: reading, draining in several, the end of holds; and the close


@pytest.mark.parametrize("made", [False, True], ids=["before the write", "after the write"])
def test_monday_is_run_again_and_then_tuesday_as_though_nothing_had_happened(made: bool) -> None:
    store, out = MemoryStore(4), Out()
    _day(store, out, tuesday=False)
    _day(store, out, tuesday=True)
    wanted = out.counts()
    for at in DEATHS:
        store, out, died = _monday_dies(at, made=made)
        assert died
        reports = [_day(store, out, tuesday=False), _day(store, out, tuesday=True)]
        assert [set(report.late.values()) for report in reports] == [{0}, {0}], at
        assert out.counts() == wanted, at
        assert not check(store).problems


@pytest.mark.parametrize("made", [False, True], ids=["before the write", "after the write"])
def test_tuesday_is_run_at_once_and_nothing_of_either_day_is_late_or_lost(made: bool) -> None:
    every = len(MONDAY + TUESDAY + OTHERS + LATER)
    for at in DEATHS:
        store, out, died = _monday_dies(at, made=made)
        assert died
        report = _day(store, out, tuesday=True)
        assert set(report.late.values()) == {0}, at
        windows, count, wide = out.counts()
        assert count == every, at
        assert wide == len(windows), at
        assert not check(store).problems
