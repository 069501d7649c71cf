"""Semantics 11: one producer's records for one key keep their order."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.options import Options
from millwheel.model.batch import RecordBatch
from millwheel.model.codec import unpack
from millwheel.model.graph import build
from millwheel.model.keys import key_text
from millwheel.model.names import SourceName
from millwheel.store.keyspace import after, row_prefix
from millwheel.store.memory import MemoryStore
from millwheel.store.row import decode_row
from millwheel.worker.envelope import Section, unpack_section
from millwheel.worker.route import Router
from millwheel.worker.step import Worker
from tests.computations import Hooks, hooks, single, values
from tests.conftest import MakeHarness
from tests.store.driving import contents, run_to_the_end, take


class Gather(mw.Computation):
    """Keeps what it got, in the order in which it came."""

    def process_record(self, record: mw.Record) -> None:
        self.state.setdefault("got", []).append(record.value)


def burst(c: Hooks, record: mw.Record) -> None:
    for n in range(10):
        c.produce("out", [record.value, n])


def test_injected_records_of_one_key_keep_their_order(harness: MakeHarness) -> None:
    h = harness(single(Gather()))
    with h.epoch():
        for n in range(30):
            h.send("in", n, timestamp=100 - n, key="abc"[n % 3])
    for index, key in enumerate("abc"):
        assert h.state("C", key)["got"] == list(range(index, 30, 3))


def test_injected_records_keep_their_order_with_and_without_ids(harness: MakeHarness) -> None:
    h = harness(single(Gather()))
    with h.epoch():
        for n in range(20):
            h.send("in", n, timestamp=0, id=n if n % 2 else None)
    assert h.state("C", "")["got"] == list(range(20))


@pytest.mark.parametrize("key", [mw.by_key, lambda record: "all"], ids=["chained", "re-keyed"])
def test_productions_of_one_key_keep_their_order(key: Any, harness: MakeHarness) -> None:
    p = hooks(burst)
    p.add(Gather(), inputs={"out": key})
    h = harness(p)
    with h.epoch():
        h.send("in", "a", timestamp=5, key="k")
        h.send("in", "b", timestamp=1, key="k")
    got = h.state("Gather", "k" if key is mw.by_key else "all")["got"]
    assert got == [[value, n] for value in "ab" for n in range(10)]


def test_the_productions_of_each_key_keep_their_order_when_keys_meet(harness: MakeHarness) -> None:
    p = hooks(burst)
    p.add(Gather(), inputs={"out": lambda record: "all"})
    h = harness(p)
    with h.epoch():
        for key in "abcdef":
            h.send("in", key, timestamp=0, key=key)
    got = h.state("Gather", "all")["got"]
    assert len(got) == 60
    for key in "abcdef":
        assert [n for value, n in got if value == key] == list(range(10))


def test_records_and_timers_of_one_key_produce_in_the_order_they_ran(harness: MakeHarness) -> None:
    def on_record(c: Hooks, record: mw.Record) -> None:
        c.produce("out", record.value)
        c.set_timer("t", 0)

    p = hooks(on_record, lambda c, timer: c.produce("out", "timer"))
    p.add(Gather(), inputs={"out": lambda record: "all"})
    h = harness(p)
    h.advance("in", 10)
    with h.epoch():
        h.send("in", 1, timestamp=10)
        h.send("in", 2, timestamp=10)
    assert h.state("Gather", "all")["got"] == [1, 2, "timer"]


def test_a_skip_level_edge_keeps_the_order(harness: MakeHarness) -> None:
    p = hooks(burst)
    p.add(
        Hooks(lambda c, r: c.produce("mid", r.value)),
        name="Mid",
        inputs={"out": lambda r: "m"},
        outputs=["mid"],
    )
    p.add(Gather(), inputs={"out": lambda record: "all", "mid": lambda record: "mid"})
    h = harness(p)
    h.send("in", "a", timestamp=0)
    assert h.state("Gather", "all")["got"] == [["a", n] for n in range(10)]
    assert h.state("Gather", "mid")["got"] == [["a", n] for n in range(10)]


def test_output_lists_epochs_in_order(harness: MakeHarness) -> None:
    h = harness(hooks(lambda c, record: c.produce("out", record.value)))
    for n in range(12):
        h.send("in", n, timestamp=0, key=str(n))
    assert values(h.output("out")) == list(range(12))


def test_the_seed_decides_the_order_of_keys() -> None:
    """Orders that the semantics leave open differ between seeds, so that tests find what depends on them."""

    def order(seed: int) -> list[int]:
        h = mw.testing.Harness(hooks(lambda c, record: c.produce("out", record.value)), seed=seed)
        with h.epoch():
            for n in range(10):
                h.send("in", n, timestamp=0, key=str(n))
        return values(h.output("out"))

    orders = {tuple(order(seed)) for seed in range(10)}
    assert len(orders) > 1
    assert {tuple(sorted(found)) for found in orders} == {tuple(range(10))}
    assert order(3) == order(3)


def test_sections_that_were_sent_by_part_and_others_keep_the_order_of_a_key() -> None:
    """Sent at once in pieces of any size, as an injecting task does."""
    rng = random.Random(3)
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Records([]))
    p.add(Gather(), inputs={"in": mw.by_key})
    graph, store = build(p), MemoryStore(2)
    driver = Driver(graph, store, Options(slots=2), clock=lambda: 0, owner="a test")
    plan = driver.next_plan()
    assert plan is not None
    sent: dict[str, list[int]] = {}
    router = Router(graph, plan, 0, 0)
    numbers = itertools.count()
    for size in (5, 9_000, 3, 200, 8_000, 1):
        keys = [f"k{rng.randrange(400)}" for _ in range(size)]
        values = [next(numbers) for _ in keys]
        for key, value in zip(keys, values, strict=True):
            sent.setdefault(key, []).append(value)
        router.send("in", RecordBatch([0] * size, values, keys=keys), None)
    by_interval: dict[int, list[Section]] = {}
    for _, _, data in router.sections:
        section = unpack_section(data)
        by_interval.setdefault(section.interval, []).append(section)
    assert len(by_interval) == len(plan.intervals[0]) == 2
    assert {section.part is None for found in by_interval.values() for section in found} == {True, False}
    grouped = {section.batch()[1] is None for found in by_interval.values() for section in found}
    assert grouped == {True, False}
    worker = Worker(graph, driver.numbers, store)
    for index, sections in by_interval.items():
        worker.step(plan, 1, index, {SourceName("in"): 0}, sections)
    prefix = row_prefix(driver.numbers["Gather"])
    found = {}
    for shard in store.shards:
        with shard.snapshot() as snapshot:
            for key, row in snapshot.scan(prefix, after(prefix)):
                state = decode_row(row).state
                assert state is not None
                found[key_text(key[11:])] = unpack(state)["got"]
    assert found == sent


@pytest.mark.parametrize("ids", [False, True], ids=["without IDs", "with IDs"])
@pytest.mark.parametrize("streams", [("in", "in"), ("in", "also")], ids=["one stream", "two streams"])
def test_lines_of_json_and_values_meet_in_one_step(
    streams: tuple[str, str], ids: bool, tmp_path: Path
) -> None:
    lines = [{"time": n, "k": f"k{n % 3}", "n": n, "id": n} for n in range(30)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = [mw.Record(value={"k": f"k{n % 3}", "n": 100 + n}, timestamp=n) for n in range(30)]
    p = mw.Pipeline("p")
    files = mw.injectors.Files(tmp_path / "*.jsonl", timestamp="time", id="id" if ids else None)
    p.inject(streams[0], files)
    p.inject(streams[1], mw.injectors.Records(values))
    p.add(Gather(), inputs=dict.fromkeys(streams, mw.by("k")))
    store = MemoryStore(2)
    run_to_the_end(*take(p, store))
    found: dict[str, list[int]] = {}
    for shard in store.shards:
        for key, row in contents(shard).items():
            if key[:1] == b"R":
                state = decode_row(row).state
                assert state is not None
                found[key_text(key[11:])] = [value["n"] for value in unpack(state)["got"]]
    assert sorted(found) == ["k0", "k1", "k2"]
    for index, got in enumerate(found[key] for key in sorted(found)):
        assert [n for n in got if n < 100] == list(range(index, 30, 3))
        assert [n for n in got if n >= 100] == list(range(100 + index, 130, 3))
