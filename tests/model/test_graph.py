"""Levels and chaining: the shape of the graph changes how it runs, never what it gives."""

from __future__ import annotations

from collections import Counter as Multiset

import pytest

import millwheel as mw
from millwheel.model.graph import build
from tests.computations import Counter, Echo, Log, Windower, values
from tests.conftest import MakeHarness

ALL = "all"


def to_all(record: mw.Record) -> str:
    return ALL


def injected(*streams: str) -> mw.Pipeline:
    p = mw.Pipeline("graph")
    for stream in streams:
        p.inject(stream, mw.injectors.Records([]))
    return p


def test_edges_by_key_share_a_level() -> None:
    p = injected("in")
    p.add(Echo("a"), name="A", inputs={"in": mw.by("k")}, outputs=["a"])
    p.add(Echo("b"), name="B", inputs={"a": mw.by_key}, outputs=["b"])
    p.add(Echo("c"), name="C", inputs={"b": mw.by_key}, outputs=["c"])
    assert build(p).levels == (("A", "B", "C"),)


def test_a_new_key_is_a_new_level() -> None:
    p = injected("in")
    p.add(Echo("a"), name="A", inputs={"in": mw.by("k")}, outputs=["a"])
    p.add(Echo("b"), name="B", inputs={"a": mw.by("k")}, outputs=["b"])
    p.add(Echo("c"), name="C", inputs={"b": to_all}, outputs=["c"])
    assert build(p).levels == (("A",), ("B",), ("C",))


def test_a_level_is_the_latest_that_an_input_asks_for() -> None:
    p = injected("in")
    p.add(Echo("a"), name="A", inputs={"in": mw.by_key}, outputs=["a"])
    p.add(Echo("b"), name="B", inputs={"a": to_all}, outputs=["b"])
    p.add(Echo("c"), name="C", inputs={"a": mw.by_key, "b": mw.by_key}, outputs=["c"])
    p.add(Echo("d"), name="D", inputs={"a": mw.by_key}, outputs=["d"])
    levels = build(p).levels
    assert set(levels[0]) == {"A", "D"}
    assert set(levels[1]) == {"B", "C"}


def test_a_chain_of_by_key_gives_what_a_re_keyed_chain_gives(harness: MakeHarness) -> None:
    results = []
    for key in (mw.by_key, lambda record: record.key):
        p = injected("in")
        p.add(Windower(), inputs={"in": mw.by("k")}, outputs=["windows"])
        p.add(Counter(), inputs={"windows": key}, outputs=["counts"])
        p.add(Log(), inputs={"counts": key}, outputs=["log"])
        h = harness(p)
        for n in range(20):
            h.send("in", {"k": n % 3}, timestamp=n * mw.SECOND // 2)
        h.advance("in", 5 * mw.SECOND)
        h.drain()
        results.append((sorted(values(h.output("log"))), h.status().records, h.status().low_watermarks))
    assert results[0] == results[1]
    assert len(results[0][0]) == 20


def test_a_diamond_delivers_both_sides_once(harness: MakeHarness) -> None:
    p = injected("in")
    p.add(Echo("a"), name="Top", inputs={"in": mw.by("k")}, outputs=["a"])
    p.add(Echo("left"), name="Left", inputs={"a": mw.by_key}, outputs=["left"])
    p.add(Echo("right"), name="Right", inputs={"a": to_all}, outputs=["right"])
    p.add(Log(), name="Bottom", inputs={"left": mw.by("k"), "right": mw.by("k")}, outputs=["log"])
    h = harness(p)
    with h.epoch():
        for n in range(6):
            h.send("in", {"k": n % 3, "n": n}, timestamp=n, id=n)
    found = Multiset((key, value["n"]) for key, value, _, _ in values(h.output("log")))
    assert found == {(str(n % 3), n): 2 for n in range(6)}


def test_a_diamond_s_watermark_waits_for_the_slower_side(harness: MakeHarness) -> None:
    p = injected("in")
    p.add(Echo("a"), name="Top", inputs={"in": mw.by_key}, outputs=["a"])
    p.add(Windower("left", size=10), name="Left", inputs={"a": mw.by_key}, outputs=["left"])
    p.add(Echo("right"), name="Right", inputs={"a": to_all}, outputs=["right"])
    p.add(Log(), name="Bottom", inputs={"left": to_all, "right": to_all}, outputs=["log"], late="drop")
    h = harness(p)
    h.send("in", 1, timestamp=3)
    h.advance("in", 8)
    assert h.low_watermark("Bottom") == 8
    h.advance("in", 25)
    assert h.low_watermark("Bottom") == 25
    assert len(h.output("log")) == 2
    assert h.status().dropped["Bottom"] == 0


def test_several_consumers_of_a_stream_have_keys_of_their_own(harness: MakeHarness) -> None:
    """The paper's Fig. 5: one stream of queries, keyed by query text and by cookie."""
    p = injected("queries")
    p.add(Counter(), name="ByText", inputs={"queries": mw.by("text")}, outputs=["counts"])
    p.add(Counter(), name="ByCookie", inputs={"queries": mw.by("cookie")}, outputs=["counts"])
    h = harness(p)
    for text, cookie in (("britney", 1), ("carly rae jepsen", 1), ("britney", 2)):
        h.send("queries", {"text": text, "cookie": cookie}, timestamp=0)
    assert h.state("ByText", "britney") == {"n": 2}
    assert h.state("ByText", "carly rae jepsen") == {"n": 1}
    assert h.state("ByCookie", "1") == {"n": 2}
    assert h.state("ByCookie", "2") == {"n": 1}
    assert h.state("ByCookie", "britney") is None


def test_several_computations_and_an_injector_may_write_one_stream(harness: MakeHarness) -> None:
    p = injected("a", "b", "merged")
    p.add(Echo("merged"), name="A", inputs={"a": mw.by_key}, outputs=["merged"])
    p.add(Echo("again"), name="B", inputs={"b": mw.by_key}, outputs=["again"])
    p.add(Echo("merged"), name="B2", inputs={"again": to_all}, outputs=["merged"])
    p.add(Log(), inputs={"merged": mw.by_key}, outputs=["log"])
    h = harness(p)
    with h.epoch():
        h.send("a", "from a", timestamp=1, key="k")
        h.send("b", "from b", timestamp=2, key="k")
        h.send("merged", "from outside", timestamp=3, key="k")
    assert sorted(value[:2] for value in values(h.output("log"))) == [
        [ALL, "from b"],
        ["k", "from a"],
        ["k", "from outside"],
    ]
    assert sorted(values(h.output("merged"))) == ["from a", "from b", "from outside"]


def test_one_computation_may_write_several_streams(harness: MakeHarness) -> None:
    class Split(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            self.produce("odd" if record.value % 2 else "even", record.value)

    p = injected("in")
    p.add(Split(), inputs={"in": to_all}, outputs=["odd", "even"])
    h = harness(p)
    for n in range(6):
        h.send("in", n, timestamp=0)
    assert values(h.output("odd")) == [1, 3, 5]
    assert values(h.output("even")) == [0, 2, 4]


def test_two_injectors_of_one_stream_are_one_in_the_harness(harness: MakeHarness) -> None:
    p = injected("in", "in")
    p.add(Log(), inputs={"in": mw.by_key}, outputs=["log"])
    h = harness(p)
    h.send("in", 1, timestamp=0)
    h.advance("in", 5)
    assert len(h.output("log")) == 1
    assert h.low_watermark("Log") == 5


def test_one_stream_read_at_several_depths(harness: MakeHarness) -> None:
    """A skip-level edge: records and watermarks pass the levels in between."""
    p = injected("in")
    p.add(Echo("a"), name="A", inputs={"in": mw.by_key}, outputs=["a"])
    p.add(Echo("b"), name="B", inputs={"a": to_all}, outputs=["b"])
    p.add(Echo("c"), name="C", inputs={"b": to_all}, outputs=["c"])
    p.add(Log(), name="D", inputs={"in": to_all, "a": to_all, "b": to_all, "c": to_all}, outputs=["log"])
    assert [len(level) for level in build(p).levels] == [1, 1, 1, 1]
    h = harness(p)
    with h.epoch():
        for n in range(5):
            h.send("in", n, timestamp=n, key=f"k{n}")
        h.advance("in", 3)
    found = Multiset(value for _, value, _, _ in values(h.output("log")))
    assert found == dict.fromkeys(range(5), 4)
    assert h.low_watermark("D") == 3


def test_a_stream_chained_by_one_consumer_and_re_keyed_by_another(harness: MakeHarness) -> None:
    p = injected("in")
    p.add(Echo("a"), name="A", inputs={"in": mw.by("k")}, outputs=["a"])
    p.add(Counter(), name="Chained", inputs={"a": mw.by_key}, outputs=["counts"])
    p.add(Counter(), name="Rekeyed", inputs={"a": to_all}, outputs=["counts"])
    p.add(Log(), name="Behind", inputs={"counts": mw.by_key}, outputs=["log"])
    h = harness(p)
    with h.epoch():
        for n in range(6):
            h.send("in", {"k": n % 2}, timestamp=0)
    assert [h.state("Chained", key) for key in ("0", "1", ALL)] == [{"n": 3}, {"n": 3}, None]
    assert h.state("Rekeyed", ALL) == {"n": 6}
    assert Multiset(value[0] for value in values(h.output("log"))) == {"0": 3, "1": 3, ALL: 6}


def test_a_computation_reads_one_stream_by_several_producers_at_several_levels(harness: MakeHarness) -> None:
    p = injected("in")
    p.add(Echo("mixed"), name="Early", inputs={"in": mw.by("k")}, outputs=["mixed"])
    p.add(Echo("b"), name="B", inputs={"in": mw.by("k")}, outputs=["b"])
    p.add(Echo("mixed"), name="Late", inputs={"b": mw.by("k")}, outputs=["mixed"])
    p.add(Counter(), inputs={"mixed": mw.by_key}, outputs=["counts"])
    assert build(p).level_of == {"Early": 1, "B": 1, "Late": 2, "Counter": 2}
    h = harness(p)
    with h.epoch():
        for n in range(6):
            h.send("in", {"k": n % 2}, timestamp=n)
        h.advance("in", 4)
    assert [h.state("Counter", key) for key in "01"] == [{"n": 6}, {"n": 6}]
    assert h.low_watermark("Counter") == 4


def test_more_levels_than_the_store_can_tell_apart_are_refused() -> None:
    def deep(levels: int) -> mw.Pipeline:
        p = mw.Pipeline("deep")
        p.inject("0", mw.injectors.Records([]))
        for n in range(levels):
            p.add(
                Echo(str(n + 1)),
                name=f"C{n}",
                inputs={str(n): lambda record: "all"},
                outputs=[str(n + 1)],
            )
        return p

    assert len(build(deep(255)).levels) == 255
    with pytest.raises(mw.PipelineError, match=r"'C255' is after 255 others.*mw\.by_key"):
        build(deep(256))
