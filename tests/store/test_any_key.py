"""Keys of any length and content keep their own state, timers and IDs, through the whole pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

import millwheel as mw
from millwheel.store.lmdb.lmdb_store import LmdbStore
from tests.store.driving import run

KEYS = [
    "",
    "plain",
    " ",
    "\x00",
    "\x00\x00",
    "a\x00b",
    "a\x00",
    "\n\t\"'",
    "\ud800",
    "\udfff\ud800",
    "a\udcff",
    "\U0001f600",
    "\U0001f600\U0001f600",
    "é",
    "e\u0301",
    "\uffff",
    "\xff",
    "x" * 480,
    "x" * 481,
    "x" * 10_000,
    "x" * 9_999 + "y",
    "\ud800" * 10_000,
    "\U0001f600" * 2_500,
]


class Remember(mw.Computation):
    """Remembers what it was sent, and says it when the watermark has passed."""

    def initial_state(self) -> list[int]:
        return []

    def process_record(self, record: mw.Record) -> None:
        assert self.key == record.key
        self.state.append(record.value)
        self.set_timer("close", 100)
        self.set_timer("wall", 1_000, clock=mw.WALL)
        self.hold(50)

    def process_timer(self, timer: mw.Timer) -> None:
        if timer.clock == mw.WALL:
            self.produce("wall", [self.key, list(self.state)])
            return
        self.release()
        self.produce("closed", [self.key, list(self.state)])


class Relay(mw.Computation):
    """Says again what it hears of a key, behind a shuffle."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("relayed", [self.key, record.value[1]])


def _pipeline(injector: mw.Injector) -> mw.Pipeline:
    p = mw.Pipeline("any key")
    p.inject("in", injector)
    p.add(Remember(), inputs={"in": mw.by_key}, outputs=["closed", "wall"])
    p.add(Relay(), inputs={"closed": _first}, outputs=["relayed"])
    return p


def _first(record: mw.Record) -> str:
    return record.value[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("slots", [1, 4])
def test_every_key_has_its_own_state_timers_and_ids_in_the_harness(slots: int) -> None:
    h = mw.testing.Harness(_pipeline(mw.injectors.Records([])), slots=slots)
    with h.epoch():
        for number, key in enumerate(KEYS):
            h.send("in", number, timestamp=number, id="the same", key=key)
    h.crash()
    with h.epoch():
        for number, key in enumerate(KEYS):
            h.send("in", 1000 + number, timestamp=number, id="the same", key=key)
            h.send("in", 2000 + number, timestamp=number, id="another", key=key)
    for number, key in enumerate(KEYS):
        assert h.state("Remember", key) == [number, 2000 + number]
        assert [(timer.tag, timer.timestamp) for timer in h.timers("Remember", key)] == [
            ("close", 100),
            ("wall", 1_000),
        ]
    assert h.status().duplicates["Remember"] == len(KEYS)
    h.crash()
    h.advance("in", 200)
    expected = sorted([key, [number, 2000 + number]] for number, key in enumerate(KEYS))
    assert sorted(record.value for record in h.output("closed")) == expected
    assert sorted(record.value for record in h.output("relayed")) == expected
    assert sorted(record.key for record in h.output("relayed")) == sorted(KEYS)
    h.crash()
    h.advance_wall(2_000)
    assert sorted(record.value for record in h.output("wall")) == expected
    for key in KEYS:
        assert [timer.tag for timer in h.timers("Remember", key)] == []


def test_every_key_has_its_own_row_in_lmdb(tmp_path: Path) -> None:
    records = [
        mw.Record(value=number, timestamp=number, key=key, id=id)
        for id in ("a", "b", "a")
        for number, key in enumerate(KEYS)
    ]
    sink = mw.sinks.Collect()
    p = _pipeline(mw.injectors.Records(records, per_epoch=10))
    p.sink("relayed", sink)
    report = run(p, LmdbStore(tmp_path, shards=4, sync=False), slots=4)
    assert sorted(record.value for record in sink.records) == sorted(
        [key, [number, number]] for number, key in enumerate(KEYS)
    )
    assert report.duplicates["Remember"] == len(KEYS)


def test_deleting_the_state_of_a_long_key_leaves_its_neighbours_alone() -> None:
    class Forget(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            if record.value is None:
                del self.state
            else:
                self.state["v"] = record.value

    p = mw.Pipeline("forget")
    p.inject("in", mw.injectors.Records([]))
    p.add(Forget(), inputs={"in": mw.by_key})
    h = mw.testing.Harness(p)
    for end in "abc":
        h.send("in", end, timestamp=0, key="x" * 5000 + end)
    h.send("in", None, timestamp=0, key="x" * 5000 + "b")
    assert [h.state("Forget", "x" * 5000 + end) for end in "abc"] == [{"v": "a"}, None, {"v": "c"}]
