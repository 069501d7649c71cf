"""In whatever order, grouping, layout and weather records come: the windows are those of a simple model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw

WINDOW = 10


class Windows(mw.Computation):
    """Counts per window; checks, as it goes, that timers come in order and in time."""

    def process_record(self, record: mw.Record) -> None:
        assert record.late == (record.timestamp < self.low_watermark)
        bucket = record.timestamp // WINDOW
        self.state[bucket] = self.state.get(bucket, 0) + record.value["n"]
        self.set_timer(f"{bucket:04d}", (bucket + 1) * WINDOW)

    def process_timer(self, timer: mw.Timer) -> None:
        assert self.low_watermark >= timer.timestamp
        bucket = int(timer.tag)
        value = {"window": bucket, "sum": self.state.pop(bucket), "key": self.key}
        self.produce("windows", value, timestamp=timer.timestamp - 1)
        self.produce("fired", [timer.timestamp, self.low_watermark], timestamp=timer.timestamp)
        if not self.state:
            del self.state


class Totals(mw.Computation):
    """Adds up the windows of all keys, once they are all there."""

    def process_record(self, record: mw.Record) -> None:
        bucket = record.value["window"]
        self.state[bucket] = self.state.get(bucket, 0) + record.value["sum"]
        self.set_timer(f"{bucket:04d}", (bucket + 1) * WINDOW)

    def process_timer(self, timer: mw.Timer) -> None:
        bucket = int(timer.tag)
        self.produce("totals", [bucket, self.state.pop(bucket)], timestamp=timer.timestamp - 1)


def pipeline() -> mw.Pipeline:
    p = mw.Pipeline("windows")
    p.inject("in", mw.injectors.Records([]))
    p.add(Windows(), inputs={"in": mw.by("key")}, outputs=["windows", "fired"], late="drop")
    p.add(Totals(), inputs={"windows": lambda record: "all"}, outputs=["totals"])
    return p


@dataclass(frozen=True)
class Send:
    key: str
    timestamp: int
    n: int
    id: int | None


@dataclass(frozen=True)
class Advance:
    watermark: int


@dataclass(frozen=True)
class Crash:
    pass


Event = Send | Advance | Crash

SENDS = st.builds(
    Send,
    key=st.sampled_from(["a", "b", "c", "d"]),
    timestamp=st.integers(0, 60),
    n=st.integers(1, 5),
    id=st.none() | st.integers(0, 8),
)
ADVANCES = st.builds(Advance, st.integers(0, 70))
EVENTS = st.lists(st.one_of(SENDS, SENDS, SENDS, ADVANCES, st.just(Crash())), max_size=30)


class Model:
    """The same in plain Python, for epochs of one event."""

    def __init__(self) -> None:
        self.watermark = mw.MIN_TIME
        self.seen: set[tuple[str, int]] = set()
        self.open: Counter[tuple[str, int]] = Counter()
        self.closed: list[tuple[str, int, int]] = []
        self.late = self.duplicates = 0

    def send(self, event: Send) -> None:
        if event.id is not None:
            if (event.key, event.id) in self.seen:
                self.duplicates += 1
                return
            self.seen.add((event.key, event.id))
        if event.timestamp < self.watermark:
            self.late += 1
            return
        self.open[event.key, event.timestamp // WINDOW] += event.n

    def advance(self, watermark: int) -> None:
        self.watermark = max(self.watermark, watermark)
        for key, bucket in sorted(self.open):
            if (bucket + 1) * WINDOW <= self.watermark:
                self.closed.append((key, bucket, self.open.pop((key, bucket))))

    def apply(self, event: Event) -> None:
        if isinstance(event, Send):
            self.send(event)
        elif isinstance(event, Advance):
            self.advance(event.watermark)


def apply(h: mw.testing.Harness, event: Event) -> None:
    if isinstance(event, Send):
        h.send("in", {"key": event.key, "n": event.n}, event.timestamp, id=event.id)
    elif isinstance(event, Advance):
        h.advance("in", event.watermark)
    else:
        h.crash()


def windows(h: mw.testing.Harness) -> list[tuple[str, int, int]]:
    return sorted((v["key"], v["window"], v["sum"]) for v in (r.value for r in h.output("windows")))


def totals(closed: list[tuple[str, int, int]]) -> list[list[int]]:
    sums: Counter[int] = Counter()
    for _, bucket, n in closed:
        sums[bucket] += n
    return sorted([bucket, n] for bucket, n in sums.items())


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, seed=st.integers(0, 5), slots=st.sampled_from([1, 3]))
def test_windows_are_those_of_the_model_after_every_event(events: list[Event], seed: int, slots: int) -> None:
    h = mw.testing.Harness(pipeline(), seed=seed, slots=slots)
    model = Model()
    lowest = {"Windows": mw.MIN_TIME, "Totals": mw.MIN_TIME}
    for event in events:
        apply(h, event)
        model.apply(event)
        assert windows(h) == sorted(model.closed)
        lows = h.status().low_watermarks
        assert all(lows[name] >= lowest[name] for name in lows), "a watermark went back"
        assert lows["Windows"] == model.watermark
        assert lows["Totals"] <= lows["Windows"]
        lowest = lows
    h.drain()
    model.advance(mw.MAX_TIME)
    assert windows(h) == sorted(model.closed)
    assert sorted(r.value for r in h.output("totals")) == totals(model.closed)
    status = h.status()
    assert status.duplicates["Windows"] == model.duplicates
    assert status.late["Windows"] == status.dropped["Windows"] == model.late
    assert status.late["Totals"] == 0
    assert status.low_watermarks == dict.fromkeys(lowest, mw.MAX_TIME)


@settings(max_examples=100, deadline=None)
@given(
    sends=st.lists(SENDS, max_size=25),
    cuts=st.sets(st.integers(0, 25)),
    crashes=st.sets(st.integers(0, 25)),
    seed=st.integers(0, 5),
    slots=st.sampled_from([1, 2, 3]),
)
def test_what_is_on_time_gives_the_same_however_it_is_grouped(
    sends: list[Send], cuts: set[int], crashes: set[int], seed: int, slots: int
) -> None:
    """Epochs, crashes, seeds and slots are no part of the result."""
    h = mw.testing.Harness(pipeline(), seed=seed, slots=slots)
    model = Model()
    group: list[tuple[int, Send]] = []

    def flush() -> None:
        if group:
            rest = [s.timestamp for s in sends[group[-1][0] + 1 :]]
            with h.epoch():
                for _, event in group:
                    apply(h, event)
                if rest:
                    h.advance("in", min(rest))
            group.clear()

    for n, event in enumerate(sends):
        model.send(event)
        group.append((n, event))
        if n in cuts:
            flush()
        if n in crashes:
            flush()
            h.crash()
    flush()
    h.drain()
    model.advance(mw.MAX_TIME)
    assert windows(h) == sorted(model.closed)
    assert sorted(r.value for r in h.output("totals")) == totals(model.closed)
    assert h.status().late["Windows"] == 0
    assert all(h.state("Windows", key) is None for key in "abcd")


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, seed=st.integers(0, 3), slots=st.sampled_from([1, 3]))
def test_crashes_leave_no_trace(events: list[Event], seed: int, slots: int) -> None:
    def run(chosen: list[Event]) -> dict[str, Any]:
        h = mw.testing.Harness(pipeline(), seed=seed, slots=slots)
        for event in chosen:
            apply(h, event)
        h.drain()
        return {**{s: h.output(s) for s in ("in", "windows", "fired", "totals")}, "status": h.status()}

    assert run(events) == run([event for event in events if not isinstance(event, Crash)])
