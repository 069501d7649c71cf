"""With in_order a key's records come in order of timestamp, its timers between them (semantics 14)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.store.tools.check import check
from tests.computations import Hooks

KEYS = ["a", "b", "c"]


def log_record(c: Any, record: mw.Record) -> None:
    """Logs a record, and does to timers what it says."""
    what, delta = record.value
    c.produce("log", ["record", record.timestamp, what, record.late, record.id])
    c.state["n"] = c.state.get("n", 0) + 1
    if what == "timer":
        c.set_timer(f"{delta % 3}", record.timestamp + delta)
    elif what == "clear":
        c.clear_timer(f"{delta % 3}")
    elif what == "forget":
        del c.state
    elif what == "bad":
        c.set_timer("undone", record.timestamp)
        raise ValueError("bad")


def log_timer(c: Any, timer: mw.Timer) -> None:
    c.produce("log", ["timer", timer.timestamp, timer.tag, c.state.get("n", 0)])
    if timer.timestamp % 5 == 0:
        c.set_timer("again", timer.timestamp + 7)


def pipeline(**options: Any) -> mw.Pipeline:
    p = mw.Pipeline("in order")
    p.inject("in", mw.injectors.Records([]))
    p.inject("more", mw.injectors.Records([]))
    p.add(
        Hooks(log_record, log_timer),
        name="Log",
        inputs={"in": mw.by_key, "more": mw.by_key},
        outputs=["log"],
        in_order=True,
        **options,
    )
    return p


class _Key:
    """What the reference has of a key; its hooks are those of the computation."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int, mw.Record]] = []
        self.timers: dict[str, int] = {}
        self.state: dict[str, int] = {}
        self.log: list[Any] = []
        self.errors: list[Any] = []

    def produce(self, stream: str, value: Any) -> None:
        self.log.append(value)

    def set_timer(self, tag: str, time: int) -> None:
        self.timers[tag] = time

    def clear_timer(self, tag: str) -> None:
        self.timers.pop(tag, None)

    def delete_state(self) -> None:
        self.state = {}

    def __delattr__(self, name: str) -> None:
        self.delete_state()

    def run(self, watermark: int) -> None:
        """Everything that is due, one after the other."""
        while True:
            due = [entry for entry in self.waiting if entry[0] < watermark or watermark == mw.MAX_TIME]
            record = min(due, default=None, key=lambda entry: entry[:2])
            timer = min(((time, tag) for tag, time in self.timers.items() if time <= watermark), default=None)
            if timer is not None and (record is None or timer[0] <= record[0]):
                del self.timers[timer[1]]
                log_timer(self, mw.Timer(timer[1], timer[0], mw.WATERMARK))
            elif record is not None:
                self.waiting.remove(record)
                self._record(record[2])
            else:
                return

    def _record(self, record: mw.Record) -> None:
        saved = dict(self.timers), dict(self.state), list(self.log)
        try:
            log_record(self, record)
        except ValueError:
            self.timers, self.state, self.log = saved
            self.errors.append([record.timestamp, record.value])


class Reference:
    """The same, naively: one key after the other, nothing but lists."""

    def __init__(self, late: str) -> None:
        self.keys = {key: _Key() for key in KEYS}
        self.late = late
        self.seen: set[Any] = set()
        self.watermark = mw.MIN_TIME
        self.counts = {"late": 0, "dropped": 0, "diverted": 0, "duplicates": 0}
        self.arrived = 0

    def epoch(self, records: list[mw.Record], watermark: int) -> None:
        for record in records:
            self.arrived += 1
            if record.id is not None:
                if (record.key, record.stream, record.id) in self.seen:
                    self.counts["duplicates"] += 1
                    continue
                self.seen.add((record.key, record.stream, record.id))
            if record.timestamp < self.watermark:
                record.late = True
                self.counts["late"] += 1
                if self.late != "deliver":
                    self.counts["dropped" if self.late == "drop" else "diverted"] += 1
                    continue
            self.keys[record.key].waiting.append((record.timestamp, self.arrived, record))
        self.watermark = max(self.watermark, watermark)
        for key in self.keys.values():
            key.run(self.watermark)


def calls(draw: random.Random) -> Iterator[tuple[list[mw.Record], int, bool]]:
    """Some epochs: records, a watermark, and whether a crash follows."""
    at = 0
    for _ in range(draw.randrange(3, 14)):
        records = []
        for _ in range(draw.choice([0, 1, 2, 12])):
            what = draw.choice(["go", "timer", "timer", "timer", "clear", "forget", "bad"])
            records.append(
                mw.Record(
                    key=draw.choice(KEYS),
                    value=[what, draw.randrange(-15, 30)],
                    timestamp=max(0, at + draw.randrange(-8, 40)),
                    stream=draw.choice(["in", "in", "more"]),
                    id=draw.randrange(30) if draw.random() < 0.4 else None,
                )
            )
        if draw.random() < 0.6:
            at += draw.randrange(25)
        yield records, at, draw.random() < 0.3


LIMITS: list[dict[str, Any]] = [
    {},
    {"due_limit": 1},
    {"step_budget": 0.0},
    {"due_limit": 2, "step_budget": 0.0},
]


@pytest.mark.parametrize("seed", range(100))
def test_whatever_the_epochs_all_is_as_in_a_naive_reference(seed: int) -> None:
    draw = random.Random(seed)
    late = draw.choice(["deliver", "drop", "divert"])
    expected = Reference(late)
    h = mw.testing.Harness(
        pipeline(late=late, errors="divert"),
        slots=draw.choice([1, 2, 3]),
        seed=seed,
        **draw.choice(LIMITS),
    )
    order = random.Random(seed + 1)
    for records, watermark, crash in calls(draw):
        with h.epoch():
            streams: dict[str, list[mw.Record]] = {"in": [], "more": []}
            for record in records:
                streams[record.stream].append(record)
            for record in records:
                h.send(record.stream, record.value, record.timestamp, record.id, record.key)
            for stream in ("in", "more"):
                h.advance(stream, watermark + (order.randrange(5) if stream == "more" else 0))
        # Across injectors an epoch gives no order: those of one come before those of the other.
        expected.epoch([*streams["in"], *streams["more"]], watermark)
        if crash:
            h.crash()
        same(h, expected)
    h.drain()
    expected.epoch([], mw.MAX_TIME)
    same(h, expected)
    assert h.status().waiting == {"Log": 0}
    for shard in h.store.shards:
        with shard.snapshot() as snapshot:
            assert list(snapshot.scan(b"W", b"X")) == []


def same(h: mw.testing.Harness, expected: Reference) -> None:
    status = h.status()
    for key, found in expected.keys.items():
        assert [record.value for record in h.output("log") if record.key == key] == found.log
        errors = [
            [record.timestamp, record.value["value"]]
            for record in h.output("Log.errors")
            if record.key == key
        ]
        assert errors == found.errors
        assert (h.state("Log", key) or {}) == found.state
        assert {timer.tag: timer.timestamp for timer in h.timers("Log", key)} == found.timers
    assert status.waiting == {"Log": sum(len(key.waiting) for key in expected.keys.values())}
    counts = {name: getattr(status, name)["Log"] for name in expected.counts}
    assert counts == expected.counts
    timers = [time for key in expected.keys.values() for time in key.timers.values()]
    assert h.low_watermark("Log") == min([expected.watermark, *timers])
    assert check(h.store).problems == []


def test_no_order_of_arrival_and_no_cutting_changes_what_is_produced() -> None:
    draw = random.Random(5)
    records = [
        mw.Record(
            key=draw.choice(KEYS),
            value=[draw.choice(["go", "timer", "clear"]), draw.randrange(-9, 20)],
            timestamp=time,
        )
        for time in draw.sample(range(300), 120)
    ]
    found = []
    for seed in range(8):
        order = random.Random(seed)
        arrived = sorted(records, key=lambda r: r.timestamp + order.randrange(40))
        h = mw.testing.Harness(pipeline(), slots=1 + seed % 3)
        while arrived:
            with h.epoch():
                for record in arrived[: order.choice([1, 5, 30])]:
                    arrived.remove(record)
                    h.send("in", record.value, record.timestamp, key=record.key)
                oldest = min((record.timestamp for record in arrived), default=0)
                h.advance("in", oldest)
                h.advance("more", oldest)
            if order.random() < 0.2:
                h.crash()
        h.drain()
        found.append({key: [r.value for r in h.output("log") if r.key == key] for key in KEYS})
        assert sum(h.status().late.values()) == 0
    assert all(one == found[0] for one in found)


def test_a_record_is_delivered_once_the_watermark_has_passed_it_and_not_before() -> None:
    h = mw.testing.Harness(pipeline())
    h.send("in", ["go", 0], timestamp=10, key="a")
    h.advance("more", 100)
    h.advance("in", 10)
    assert h.output("log") == []
    assert (h.status().waiting, h.low_watermark("Log")) == ({"Log": 1}, 10)
    h.advance("in", 11)
    assert [record.timestamp for record in h.output("log")] == [10]
    assert (h.status().waiting, h.low_watermark("Log")) == ({"Log": 0}, 11)


def test_a_record_at_the_end_of_time_is_delivered_at_the_end() -> None:
    h = mw.testing.Harness(pipeline())
    h.send("in", ["timer", 0], timestamp=mw.MAX_TIME, key="a")
    h.drain()
    assert [record.value[0] for record in h.output("log")] == ["record", "timer"]


def test_a_wall_timer_does_not_wait_for_records() -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.produce("log", ["record", record.timestamp])
        c.set_timer("wall", 50, mw.WALL)

    hooks = Hooks(on_record, lambda c, timer: c.produce("log", ["timer", timer.timestamp]))
    p = mw.Pipeline("in order")
    p.inject("in", mw.injectors.Records([]))
    p.add(hooks, name="Log", inputs={"in": mw.by_key}, outputs=["log"], in_order=True)
    h = mw.testing.Harness(p)
    h.send("in", 0, timestamp=1, key="a")
    h.send("in", 0, timestamp=20, key="a")
    h.advance("in", 2)
    h.advance_wall(50)
    assert [record.value for record in h.output("log")] == [["record", 1], ["timer", 50]]


def test_the_watermark_that_a_hook_sees_has_passed_its_record() -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.produce("log", c.low_watermark)
        c.set_timer("t", record.timestamp + 1)

    p = mw.Pipeline("in order")
    p.inject("in", mw.injectors.Records([]))
    hooks = Hooks(on_record, lambda c, timer: c.produce("log", c.low_watermark))
    p.add(hooks, name="Log", inputs={"in": mw.by_key}, outputs=["log"], in_order=True)
    h = mw.testing.Harness(p)
    with h.epoch():
        for time in (3, 1):
            h.send("in", 0, timestamp=time, key="a")
        h.advance("in", 10)
    assert [record.value for record in h.output("log")] == [10, 10, 10, 10]


class Sums(mw.Computation):
    """Sums by window of ten."""

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // 10
        self.count("calls")
        self.state[window] = self.state.get(window, 0) + record.value
        self.set_timer(str(window), (window + 1) * 10)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("sums", [self.state.pop(int(timer.tag)), len(self.state)], timestamp=timer.timestamp - 1)


@pytest.mark.parametrize("errors", ["stop", "divert"])
def test_a_combiner_joins_what_no_timer_divides(errors: Any) -> None:
    found = []
    for combine in (None, mw.combiners.Sum(10)):
        p = mw.Pipeline("in order")
        p.inject("in", mw.injectors.Records([]))
        p.add(
            Sums(), inputs={"in": mw.by_key}, outputs=["sums"], in_order=True, combine=combine, errors=errors
        )
        h = mw.testing.Harness(p)
        with h.epoch():
            for time in (31, 5, 7, 12, 14, 6, 33, 15, 99):
                h.send("in", time, timestamp=time, key="a")
            h.advance("in", 90)
        found.append([record.value for record in h.output("sums")])
        assert h.status().records["Sums"] == 8
        assert h.status().waiting["Sums"] == 1
        if combine is not None and errors == "stop":
            assert h.status().user["calls"] == 3
    assert found == [[[18, 0], [41, 0], [64, 0]]] * 2


def test_records_that_wait_are_taken_up_when_the_computation_is_in_order_no_more() -> None:
    from millwheel.master.driver import Driver
    from millwheel.master.local_executor import LocalExecutor
    from millwheel.model.graph import build
    from millwheel.store.memory import MemoryStore
    from millwheel.worker.step import Worker

    store = MemoryStore(2)
    records = [mw.Record(key=key, value=1, timestamp=time, id=time) for time in (9, 4, 7) for key in "ab"]
    collected = mw.sinks.Collect()

    def run(in_order: bool) -> mw.Report:
        p = mw.Pipeline("in order")
        p.inject("in", mw.injectors.Records(records, [0] * len(records), per_epoch=4))
        hooks = Hooks(lambda c, record: c.produce("log", record.timestamp))
        p.add(hooks, name="Log", inputs={"in": mw.by_key}, outputs=["log"], in_order=in_order)
        p.sink("log", collected)
        graph = build(p)
        driver = Driver(graph, store, Options(slots=2), clock=lambda: 0, owner="a test")
        plan = driver.next_plan(Mode.FORCED)
        assert plan is not None
        driver.run(plan, LocalExecutor(Worker(graph, driver.numbers, store)))
        report = driver.report()
        store.close()
        return report

    assert run(True).waiting == {"Log": 4}
    assert run(False).waiting == {"Log": 0}
    assert sorted(record.value for record in collected.records) == [4, 4, 7, 7, 9, 9]
    assert check(store).problems == []


def test_what_waits_is_shown_by_inspect_and_status() -> None:
    from millwheel.watch import text
    from millwheel.watch.key_view import inspect
    from millwheel.watch.view import look

    h = mw.testing.Harness(pipeline())
    h.send("in", ["go", 1], timestamp=10, key="a")
    h.send("in", ["go", 2], timestamp=5, key="a")
    h.send("in", ["go", 3], timestamp=7, key="b")
    found = inspect(h.store, "Log", "a")
    assert [(record["timestamp"], record["value"]) for record in found.waiting] == [
        (5, ["go", 2]),
        (10, ["go", 1]),
    ]
    assert not found.found
    assert text.key(found).count("waiting: record of 'in' at") == 2
    assert "3 waiting" in str(h.status())
    (part,) = look(h.store, 0).computations
    assert part.waiting == 3
    assert "waiting" in text.status(look(h.store, 0))


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_wall_timer_has_its_place_among_the_records_of_an_epoch_however_it_is_cut(
    limits: dict[str, Any],
) -> None:
    def process_record(c: Any, record: mw.Record) -> None:
        c.produce("log", ["record", record.timestamp])
        if record.value == "timer":
            c.set_timer("wall", 30, clock=mw.WALL)
        elif record.value == "clear":
            c.clear_timer("wall")

    p = mw.Pipeline("in order")
    p.inject("in", mw.injectors.Records([]))
    timed = Hooks(process_record, lambda c, timer: c.produce("log", [timer.clock, timer.timestamp]))
    p.add(timed, name="Log", inputs={"in": mw.by_key}, outputs=["log"], in_order=True)
    h = mw.testing.Harness(p, **limits)
    for key, last in (("a", "go"), ("b", "clear")):
        h.send("in", "timer", timestamp=1, key=key)
        h.advance("in", 2)
        for timestamp in (10, 20, 28):  # in epochs of their own: one piece of what waits is never cut
            h.send("in", last if timestamp == 28 else "go", timestamp=timestamp, key=key)
        h.send("in", "go", timestamp=31, key=key)
    with h.epoch():
        h.advance_wall(40)
        h.advance("in", 100)
    found = {key: [r.value for r in h.output("log") if r.key == key] for key in "ab"}
    times = (1, 10, 20, 28, 31)
    assert found["b"] == [["record", time] for time in times]
    assert found["a"] == [*found["b"][:-1], ["wall", 30], found["b"][-1]]
