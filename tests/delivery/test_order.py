"""Semantics 11: one producer's records for one key keep their order."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.computations import Hooks, hooks, single, values
from tests.conftest import MakeHarness


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
