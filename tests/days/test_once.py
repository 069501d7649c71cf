"""`run(..., close=False)`: what is there is processed, and event time goes on in the next run (9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.ending import Ending
from millwheel.master.journal import Journal
from millwheel.store.memory import MemoryStore
from tests.computations import Hooks, Windower
from tests.store.driving import run

SLACK = 7


class Slack(mw.Injector):
    """Records in one partition; the watermark follows timestamps."""

    slack = SLACK

    def __init__(self, times: Iterable[int]) -> None:
        self.times = list(times)

    def poll(self) -> Mapping[str, Any]:
        return {"all": len(self.times)}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        return [_record(time) for time in self.times[start or 0 : end]]

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if (offset or 0) >= len(self.times) else mw.MIN_TIME


class Endless(Slack):
    """Has something new each time that it is asked, and vouches for nothing."""

    slack = None
    bounded = False

    def poll(self) -> Mapping[str, Any]:
        self.times.append(max(self.times) + 1)
        return super().poll()

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MIN_TIME


def _record(time: int) -> mw.Record:
    return mw.Record(value={"k": "a"}, timestamp=time)


def _records(*times: int) -> mw.injectors.Records:
    return mw.injectors.Records([_record(time) for time in times])


def _pipeline(*injectors: mw.Injector, late: Any = "drop") -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p, out = mw.Pipeline("once"), mw.sinks.Collect()
    for injector in injectors:
        p.inject("in", injector)
    p.add(Windower(size=10), inputs={"in": mw.by("k")}, outputs=["windows"], late=late)
    p.sink("windows", out)
    return p, out


def _low(store: MemoryStore) -> Any:
    return Journal(store).recover().commit.watermarks["Windower"].low


def test_windows_stay_open_for_the_next_run() -> None:
    store = MemoryStore(1)
    p, out = _pipeline(_records(3, 14, 15))
    report = run(p, store, ending=Ending.LEAVE_OPEN)
    assert [record.value["count"] for record in out.records] == [1]
    assert report.low_watermarks == {"Windower": 15}
    p, out = _pipeline(_records(3, 14, 15, 15, 16))
    report = run(p, store, ending=Ending.LEAVE_OPEN)
    assert (out.records, report.late) == ([], {"Windower": 0})
    p, out = _pipeline(_records(3, 14, 15, 15, 16, 30))
    run(p, store, ending=Ending.LEAVE_OPEN)
    assert [record.value["count"] for record in out.records] == [4]


@pytest.mark.parametrize(
    ("injectors", "low"),
    [
        ([_records(3, 25)], 25),
        ([Slack([3, 25])], 25 - SLACK),
        ([_records(3, 4), _records(39)], 39),
        ([_records(3, 4), _records()], 4),
        ([mw.injectors.Records([_record(3)], watermarks=[40])], 3),
        ([mw.injectors.Records([_record(3), _record(4)], watermarks=[25, 25], per_epoch=1)], 25),
        ([_records()], mw.MIN_TIME),
    ],
)
def test_a_stream_that_is_read_to_its_end_stays_at_its_newest_timestamp_less_the_slack(
    injectors: list[mw.Injector], low: int
) -> None:
    store = MemoryStore(1)
    p, _ = _pipeline(*injectors)
    report = run(p, store, ending=Ending.LEAVE_OPEN)
    assert report.low_watermarks == {"Windower": low}
    assert _low(store) == low


def test_an_injector_without_an_end_is_read_as_far_as_it_was_at_first() -> None:
    store, injector = MemoryStore(1), Endless([3])
    p, _ = _pipeline(injector)
    assert run(p, store, ending=Ending.LEAVE_OPEN).records_in == 2


def test_holds_and_timers_stay_and_hold_in_the_next_run() -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.hold(record.timestamp - 5)

    def pipeline(*times: int) -> mw.Pipeline:
        p = mw.Pipeline("held")
        p.inject("in", _records(*times))
        p.add(Hooks(on_record), name="C", inputs={"in": mw.by("k")})
        return p

    store = MemoryStore(1)
    report = run(pipeline(20), store, ending=Ending.LEAVE_OPEN)
    assert (report.low_watermarks, report.unreleased_holds) == ({"C": 15}, 0)
    report = run(pipeline(20, 50), store, ending=Ending.LEAVE_OPEN)
    assert report.low_watermarks == {"C": 45}
    report = run(pipeline(20, 50), store)
    assert (report.low_watermarks, report.unreleased_holds) == ({"C": mw.MAX_TIME}, 1)


def test_a_run_that_closes_comes_after_one_that_did_not() -> None:
    store = MemoryStore(1)
    p, out = _pipeline(_records(3, 14))
    run(p, store, ending=Ending.LEAVE_OPEN)
    p, more = _pipeline(_records(3, 14, 16, 31))
    run(p, store)
    found = [(r.value["window"], r.value["count"]) for r in out.records + more.records]
    assert found == [(0, 1), (1, 2), (3, 1)]
    assert _low(store) == 32
