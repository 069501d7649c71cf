"""An epoch that does not fit is continued: `due_limit` and `step_budget` change when, never what.

Each is tried against the same calls without a limit: nothing that is late, dropped or emitted may differ.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.codec import pack
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.watch.explain import explain
from millwheel.worker.step import Worker
from tests.computations import Hooks, Windower

KEYS = [f"key {n}" for n in range(6)]
LIMITS: list[dict[str, Any]] = [{"due_limit": 1}, {"step_budget": 0.0}, {"due_limit": 2, "step_budget": 0.0}]


def windows(records: mw.Injector | None = None, *, chained: bool = False) -> mw.Pipeline:
    """Windows of each key, stamped before their end, and windows of all keys over those."""
    p = mw.Pipeline("windows")
    p.inject("in", records or mw.injectors.Records([]))
    p.add(Windower("first", size=10, stamp=-1), name="First", inputs={"in": mw.by_key}, outputs=["first"])
    by: Any = mw.by_key if chained else lambda record: "all"
    second = Windower("second", size=50, stamp=-1)
    p.add(second, name="Second", inputs={"first": by}, outputs=["second"], late="drop")
    return p


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_no_window_is_late_downstream_because_its_timer_was_left_to_the_next_epoch(
    limits: dict[str, Any], chained: bool, slots: int
) -> None:
    h = mw.testing.Harness(windows(chained=chained), slots=slots, **limits)
    for key in KEYS:
        for time in range(0, 100, 5):
            h.send("in", 1, timestamp=time, key=key)
    h.advance("in", 100)
    assert h.status().dropped["Second"] == 0
    assert sum(record.value["count"] for record in h.output("second")) == 10 * len(KEYS)


class Running:
    """The pipeline epoch by epoch, under a limit; what it reads is all there at once."""

    def __init__(self, keys: int, **limits: Any) -> None:
        records = [mw.Record(key=f"key {n}", value=1, timestamp=n % 10) for n in range(keys)]
        watermarks = [0] * keys
        records.append(mw.Record(key="last", value=1, timestamp=100))
        p = windows(mw.injectors.Records(records, watermarks=[*watermarks, 100], per_epoch=keys))
        self.second = mw.sinks.Collect()
        p.sink("second", self.second)
        graph = build(p)
        self.store = MemoryStore(1)
        self.driver = Driver(graph, self.store, Options(slots=1, **limits), clock=lambda: 0, owner="a test")
        self._executor = LocalExecutor(Worker(graph, self.driver.numbers, self.store))

    def epoch(self) -> bool:
        plan = self.driver.next_plan_to_the_end()
        if plan is not None:
            self.driver.run(plan, self._executor)
        return plan is not None


def test_timers_that_are_left_hold_the_low_watermark_where_it_was_before_they_were_due() -> None:
    running = Running(9, due_limit=4)
    lows = []
    while running.epoch():
        lows.append(running.driver.authority.lows["First"])
        if running.driver.authority.more_due:
            cause = explain(running.store, "First").cause
            assert (cause.because, cause.time) == ("timer", 10)
    assert lows == [0, 0, 0, mw.MAX_TIME], "five, then one timer were due and not fired"
    assert [record.value["count"] for record in running.second.records] == [9, 1]
    assert running.driver.report().dropped["Second"] == 0


def obey(c: Hooks, record: mw.Record) -> None:
    """Does what a record says.

    In the first computation its order among the records of its key matters; behind it, where there is no
    order among those of several senders, it does not.
    """
    what, time = record.value
    first = record.stream == "in"
    c.state["n"] = c.state.get("n", 0) + 1
    seen = [record.timestamp, record.late, c.low_watermark, c.now]
    c.state["seen"] = sorted([*c.state.get("seen", []), seen])
    if what == "wall":
        c.set_timer(f"wall {time % 3}" if first else f"wall {time}", time % 40 if first else time, mw.WALL)
    elif what == "timer":
        c.set_timer(f"timer {time % 3}" if first else f"timer {time}", time)
    elif what == "hold":
        c.hold(time, f"{time % 2}" if first else f"{time}")
    elif what == "release" and first:
        c.release(f"{time % 2}")
    elif what == "forget" and first:
        del c.state
    c.produce("out", [what, time + 3], timestamp=max(record.timestamp - 2, c.low_watermark))


def fired(c: Hooks, timer: mw.Timer) -> None:
    c.produce("out", ["timer", timer.timestamp + 7], timestamp=timer.timestamp - 1)
    c.produce("fired", [timer.tag, timer.timestamp, c.low_watermark, c.now, c.state.get("n", 0)])
    if timer.timestamp % 4 == 0 and timer.timestamp < 150:
        c.set_timer("again", timer.timestamp + 1)


def _extractor(seed: int) -> Any:
    return [mw.by_key, lambda record: KEYS[record.value[1] % 3], lambda record: record.key][seed % 3]


def drawn(seed: int) -> mw.Pipeline:
    """Three computations in a row, of which the last reads the first one as well."""
    draw = random.Random(seed)
    policy = ["deliver", "drop", "divert"]
    p = mw.Pipeline("drawn")
    p.inject("in", mw.injectors.Records([]))
    p.inject("more", mw.injectors.Records([]))
    for name, inputs in (("A", ["in"]), ("B", ["A.out", "more"]), ("C", ["B.out", "A.out"])):
        p.add(
            _Renamed(name),
            name=name,
            inputs={stream: _extractor(draw.randrange(3)) for stream in inputs},
            outputs=[f"{name}.out", f"{name}.fired"],
            late=draw.choice(policy),
            exactly_once=draw.random() < 0.7,
        )
    return p


class _Renamed(Hooks):
    """Puts what the functions above produce on streams of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(obey, fired)
        self.prefix = name

    def produce(self, stream: str, value: Any, timestamp: int | None = None) -> None:
        super().produce(f"{self.prefix}.{stream}", value, timestamp)


def played(seed: int, **limits: Any) -> list[Any]:
    """What can be seen after each of some drawn calls."""
    draw = random.Random(seed)
    h = mw.testing.Harness(drawn(seed), slots=draw.choice([1, 2, 3]), seed=seed, **limits)
    seen = []
    at = 0
    for _ in range(12):
        with h.epoch():
            for _ in range(draw.randrange(8)):
                what = draw.choice(["go", "go", "hold", "release", "wall", "timer", "timer", "forget"])
                stream, key = draw.choice(["in", "in", "more"]), draw.choice(KEYS)
                value = [what, at + draw.randrange(-5, 30)]
                id = draw.randrange(40) if draw.random() < 0.5 else None
                h.send(stream, value, timestamp=max(at + draw.randrange(-10, 25), 0), key=key, id=id)
            if draw.random() < 0.6:
                at += draw.randrange(20)
                h.advance("in", at)
                h.advance("more", at + draw.randrange(-5, 5))
            if draw.random() < 0.3:
                h.advance_wall(at)
        if draw.random() < 0.2:
            h.crash()
        seen.append(looked_at(h))
    h.drain()
    seen.append(looked_at(h))
    return seen


def looked_at(h: mw.testing.Harness) -> Any:
    status = h.status()
    streams = [f"{name}.{part}" for name in "ABC" for part in ("out", "fired", "late")]
    return {
        "outputs": {
            stream: Counter((r.key, r.timestamp, pack(r.value)) for r in h.output(stream))
            for stream in streams
            if stream in h.taps
        },
        "states": {(name, key): h.state(name, key) for name in "ABC" for key in KEYS},
        "timers": {(name, key): h.timers(name, key) for name in "ABC" for key in KEYS},
        "lows": status.low_watermarks,
        "inputs": status.input_watermarks,
        "counts": [status.late, status.dropped, status.duplicates, status.records, status.produced],
    }


@pytest.mark.parametrize("seed", range(40))
def test_a_limit_changes_nothing_that_can_be_seen_after_a_call(seed: int) -> None:
    unlimited = played(seed)
    for limits in LIMITS:
        assert played(seed, **limits) == unlimited, f"with {limits}"
