"""`map`, `filter`, `flat_map`, `union`, `named` and `key_by` run where a record is made."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from tests.operators.feeding import source


class Seen(mw.Computation):
    """Passes on what it gets, with its key."""

    def process_record(self, record: mw.Record) -> None:
        self.produce("seen", [self.key, record.value])


def seen(h: mw.testing.Harness) -> list[tuple[Any, int]]:
    return [(record.value, record.timestamp) for record in h.output("seen")]


def test_steps_keep_key_timestamp_and_order() -> None:
    p = mw.Pipeline("steps")
    (
        p.inject("a", source())
        .map(lambda v: v + 1)
        .filter(lambda v: v % 2 == 0)
        .flat_map(lambda v: [v, -v] if v else None)
        .key_by(lambda v: "all")
        .process(Seen(), outputs=["seen"])
    )
    h = mw.testing.Harness(p)
    with h.epoch():
        for number in (1, 2, -1, 3):
            h.send("a", number, timestamp=number + 10)
    assert seen(h) == [(["all", 2], 11), (["all", -2], 11), (["all", 4], 13), (["all", -4], 13)]
    assert h.status().streams == {"a": 4, "seen": 4}


def test_a_keyed_stream_keeps_the_key_that_it_had_before_its_steps() -> None:
    p = mw.Pipeline("keyed")
    keyed = p.inject("a", source()).key_by("user")
    keyed.filter(lambda v: v["n"]).map(lambda v: v["n"]).flat_map(lambda n: [n, n]).process(
        Seen(), outputs=["seen"]
    )
    h = mw.testing.Harness(p, slots=3)
    for user, number in (("x", 1), ("y", 0), ("z", 2)):
        h.send("a", {"user": user, "n": number}, timestamp=1)
    assert sorted(seen(h)) == [(["x", 1], 1), (["x", 1], 1), (["z", 2], 1), (["z", 2], 1)]


def test_steps_run_behind_computations_too() -> None:
    p = mw.Pipeline("behind")
    counts = p.inject("a", source()).key_by("k").window(mw.windows.tumbling(10)).count("counts")
    counts.filter(lambda v: v["count"] > 1).map(lambda v: v["count"]).named("many")
    p.add(Seen(), inputs={"many": mw.by_key}, outputs=["seen"])
    h = mw.testing.Harness(p)
    for key in ("x", "x", "y"):
        h.send("a", {"k": key}, timestamp=1)
    h.drain()
    assert seen(h) == [(["x", 2], 9)]
    assert [record.value for record in h.output("many")] == [2]


def test_the_pieces_of_a_record_with_an_id_count_all_or_not_at_all() -> None:
    p = mw.Pipeline("pieces")
    p.inject("a", source()).flat_map(lambda v: [v] * 3).key_by(lambda v: "all").process(
        Seen(), outputs=["seen"]
    )
    h = mw.testing.Harness(p)
    h.send("a", 1, timestamp=1, id="one")
    h.crash()
    h.send("a", 1, timestamp=1, id="one")
    h.send("a", 1, timestamp=1, id="two")
    assert len(seen(h)) == 6
    assert h.status().duplicates["Seen"] == 3


def test_a_record_that_reaches_a_union_twice_counts_twice() -> None:
    p = mw.Pipeline("union")
    a, b = p.inject("a", source()), p.inject("b", source())
    a.union(a.filter(lambda v: v > 1), b).key_by(lambda v: "all").process(Seen(), outputs=["seen"])
    h = mw.testing.Harness(p)
    h.send("a", 1, timestamp=1, id="one")
    h.send("a", 2, timestamp=1, id="two")
    h.send("a", 2, timestamp=1, id="two")
    h.send("b", 3, timestamp=1, id="one")
    assert sorted(value for (_, value), _ in seen(h)) == [1, 2, 2, 3]
    h.advance("a", 50)
    assert h.low_watermark("Seen") == mw.MIN_TIME
    h.advance("b", 40)
    assert h.low_watermark("Seen") == 40


def test_a_function_may_change_the_value_that_it_gets() -> None:
    def doubled(value: dict[str, int]) -> dict[str, int]:
        value["n"] *= 2
        return value

    p = mw.Pipeline("changing")
    a = p.inject("a", source())
    kept = mw.sinks.Collect()
    a.sink(kept)
    a.map(doubled).named("once")
    a.map(doubled).map(doubled).named("twice")
    h = mw.testing.Harness(p)
    h.send("a", {"n": 1}, timestamp=1)
    assert [h.output(s)[0].value["n"] for s in ("a", "once", "twice")] == [1, 2, 4]
    assert [record.value["n"] for record in kept.records] == [1]


def test_a_stream_is_there_by_its_name_before_anybody_writes_it() -> None:
    p = mw.Pipeline("names")
    p.stream("later").map(lambda v: v + 1).named("last")
    p.inject("a", source()).map(lambda v: v * 10).named("later")
    h = mw.testing.Harness(p)
    h.send("a", 1, timestamp=1)
    assert h.output("last")[0].value == 11


def test_a_key_extractor_may_skip_records() -> None:
    p = mw.Pipeline("skipping")
    keyed = p.inject("a", source()).key_by(lambda v: mw.SKIP if v < 0 else str(v))
    keyed.map(lambda v: v).process(Seen(), outputs=["seen"])
    h = mw.testing.Harness(p)
    with h.epoch():
        for number in (-1, 1):
            h.send("a", number, timestamp=1)
    assert seen(h) == [(["1", 1], 1)]


def test_a_function_that_raises_stops_the_pipeline_and_names_the_stream_and_the_record() -> None:
    p = mw.Pipeline("failing")
    p.inject("a", source()).map(lambda v: 1 // v).named("out")
    h = mw.testing.Harness(p)
    h.send("a", 1, timestamp=1)
    with pytest.raises(mw.UserCodeError, match=r"stream 'out'.*ZeroDivisionError.*value=0"):
        h.send("a", 0, timestamp=2)
    assert [record.value for record in h.output("out")] == [1]


def test_a_record_that_a_function_fails_on_is_diverted_where_its_producer_diverts() -> None:
    p = mw.Pipeline("diverting")
    injector = mw.injectors.Records([])
    injector.errors = "divert"
    p.inject("a", injector).map(lambda v: 1 // v).key_by(lambda v: "all").process(
        Seen(), outputs=["seen"], errors="divert"
    )
    p.stream("seen").map(lambda v: v[1] // 0).named("never")
    h = mw.testing.Harness(p)
    with h.epoch():
        h.send("a", 0, timestamp=1)
        h.send("a", 1, timestamp=2)
    assert [record.value["value"] for record in h.output("a.errors")] == [0]
    assert [record.value["value"] for record in h.output("Seen.errors")] == [["all", 1]]
    assert seen(h) == [(["all", 1], 2)]
    assert h.output("never") == []


def test_a_value_that_cannot_be_encoded_is_diverted_and_shifts_no_other() -> None:
    p = mw.Pipeline("unencodable")
    injector = mw.injectors.Records([])
    injector.errors = "divert"
    p.inject("a", injector).map(lambda v: object() if v == 2 else v * 10).named("out")
    h = mw.testing.Harness(p)
    with h.epoch():
        for number in (1, 2, 3):
            h.send("a", number, timestamp=number, key=f"k{number}")
    assert [(r.key, r.value, r.timestamp) for r in h.output("out")] == [("k1", 10, 1), ("k3", 30, 3)]
    assert [record.value["value"] for record in h.output("a.errors")] == [2]


def test_process_returns_the_streams_of_its_outputs() -> None:
    class Two(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            self.produce("even" if record.value % 2 == 0 else "odd", record.value)

    p = mw.Pipeline("two")
    even, odd = p.inject("a", source()).key_by(lambda v: "all").process(Two(), outputs=["even", "odd"])
    even.union(odd).map(str).named("all")
    h = mw.testing.Harness(p)
    for number in range(3):
        h.send("a", number, timestamp=1)
    assert sorted(record.value for record in h.output("all")) == ["0", "1", "2"]


BAD: dict[str, Any] = {
    "a size of 0": (lambda s: mw.windows.tumbling(0), "size"),
    "a size that is no number": (lambda s: mw.windows.sliding("1m", 5), "size"),
    "a fraction of a microsecond": (lambda s: mw.windows.tumbling(0.5), "whole number"),
    "more than all of time": (lambda s: mw.windows.session(2**63 + 1), "gap is .* at most"),
    "a gap below 0": (lambda s: mw.windows.session(-1), "gap"),
    "no window": (lambda s: s.key_by("k").window(60), "millwheel.windows"),
    "a late policy that is none": (
        lambda s: s.key_by("k").window(mw.windows.tumbling(1), late="deliver"),
        '"drop" or "divert"',
    ),
    "a lateness below 0": (lambda s: s.key_by("k").window(mw.windows.tumbling(1), lateness=-1), "lateness"),
    "early of 0": (lambda s: s.key_by("k").window(mw.windows.tumbling(1), early=0), "early"),
    "no aggregate": (lambda s: s.key_by("k").window(mw.windows.tumbling(1)).aggregate("x"), "agg.sum"),
    "an aggregate that is none": (
        lambda s: s.key_by("k").window(mw.windows.tumbling(1)).aggregate("x", n=sum),
        "create, add, merge",
    ),
    "an aggregate's name that is taken": (
        lambda s: s.key_by("k").window(mw.windows.tumbling(1)).aggregate("x", end=mw.agg.count()),
        "'end'",
    ),
    "no name": (lambda s: s.key_by("k").window(mw.windows.tumbling(1)).count(""), "name"),
    "a stream without keys": (lambda s: s.window(mw.windows.tumbling(1)), "key_by"),
    "a map of no function": (lambda s: s.map(3), "function"),
    "a key that is none": (lambda s: s.key_by(3), "fields"),
    "no key": (lambda s: s.key_by(), "fields"),
    "a join that is none": (
        lambda s: s.key_by("k").join(s.key_by("k"), within=1, how="full", name="x"),
        '"outer"',
    ),
    "a join with no stream": (lambda s: s.key_by("k").join("b", within=1, name="x"), "a stream"),
    "a join without keys": (lambda s: s.key_by("k").join(s, within=1, name="x"), "key_by"),
    "a span below 0": (lambda s: s.key_by("k").join(s.key_by("k"), within=-1, name="x"), "span"),
    "a join with itself without a name": (
        lambda s: s.key_by("k").join(s.key_by("k"), within=1),
        'a joined with itself is a stream of its own: name it, name="pairs"',
    ),
    "a quantile of 2": (lambda s: mw.agg.quantile("n", 2), "0 to 1"),
    "a field that is none": (lambda s: mw.agg.sum(3), "field"),
    "top 0": (lambda s: s.top("x", 0, by="n", window=mw.windows.tumbling(1)), "1 or more"),
    "an instance, not a class": (
        lambda s: s.key_by("k").window(mw.windows.tumbling(1)).aggregate("x", n=Seen),
        "instance",
    ),
    "a function that is None": (lambda s: s.map(None), "a function of a value"),
    "an aggregate of no field": (lambda s: mw.agg.sum(None), "a field is its name"),
    "a name that an injector has": (lambda s: s.map(len).named("b"), "an injector writes a stream 'b'"),
    "a name that an operator has": (lambda s: (counted(s, "n"), s.named("n")), "computation 'n' writes"),
    "an operator with the name of a step": (lambda s: (s.named("n"), counted(s, "n")), "already"),
    "an aggregate called revision where there are revisions": (
        lambda s: (
            s.key_by("k").window(mw.windows.tumbling(1), early=1).aggregate("x", revision=mw.agg.count())
        ),
        "'revision'",
    ),
    "a field that is async": (lambda s: mw.agg.sum(later), "async"),
    "an argument of a window that there is not": (
        lambda s: s.key_by("k").window(mw.windows.tumbling(1), latenes=1),
        r"KeyedStream\('a'\).window: .*'latenes'. It takes window\(window, \*, lateness=0, early=None, late=",
    ),
    "an argument of count that there is not": (
        lambda s: s.key_by("k").window(mw.windows.tumbling(1)).count(foo=1),
        r"window\(tumbling\(1\)\).count: .* It takes count\(name\)",
    ),
    "a join without a span": (
        lambda s: s.key_by("k").join(s.key_by("k"), name="x"),
        r"join: .*'within'. It takes join\(other, \*, within, how='inner', name=''\)",
    ),
    "too many arguments": (lambda s: s.map(len, len), r"map: too many .* It takes map\(function\)"),
    "an aggregate without its field": (
        lambda s: mw.agg.sum(),
        r"agg.sum: .*'field'. It takes sum\(field\)",
    ),
    "a window without its size": (
        lambda s: mw.windows.sliding(10),
        r"windows.sliding: .*'every'. It takes sliding\(size, every\)",
    ),
    "an option that add does not have": (
        lambda s: s.key_by("k").process(Seen(), outputs=["x"], inorder=True),
        r"process: .*'inorder'. It takes add\(computation, \*, .*in_order=False",
    ),
    "outputs that are no list": (lambda s: s.key_by("k").process(Seen(), outputs=3), "outputs is a list"),
    "a stream that is made of itself": (lambda s: counted(counted(s.map(len), "n"), "a"), "its own input"),
}


async def later(value: Any) -> Any: ...


def counted(stream: mw.Stream, name: str) -> mw.Stream:
    return stream.key_by("k").window(mw.windows.tumbling(1)).count(name)


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_an_error_when_it_is_made(mistake: str) -> None:
    make, words = BAD[mistake]
    p = mw.Pipeline("bad")
    stream = p.inject("a", source())
    p.inject("b", source())
    with pytest.raises(mw.PipelineError, match=words):
        make(stream)


def test_a_stream_without_keys_has_no_operators_of_keyed_ones() -> None:
    stream = mw.Pipeline("keys").inject("a", source())
    assert not hasattr(stream, "window")
    assert hasattr(stream.key_by("k"), "window")
    with pytest.raises(AttributeError, match="key_by"):
        _ = stream.process


def test_a_field_is_called_revision_where_no_revision_is_emitted() -> None:
    p = mw.Pipeline("fields")
    window = p.inject("a", source()).key_by("k").window(mw.windows.tumbling(10))
    window.aggregate("out", revision=mw.agg.max("n"))
    h = mw.testing.Harness(p)
    h.send("a", {"k": "x", "n": 7}, timestamp=1)
    h.drain()
    assert [record.value for record in h.output("out")] == [
        {"key": "x", "start": 0, "end": 10, "revision": 7}
    ]


def test_the_name_of_an_aggregate_is_an_argument_by_position_or_by_keyword() -> None:
    p = mw.Pipeline("names")
    window = p.inject("a", source()).key_by("k").window(mw.windows.tumbling(10))
    assert window.aggregate(name="by keyword", n=mw.agg.count()).name == "by keyword"
    assert window.aggregate("by position", name=mw.agg.count()).name == "by position"


def test_a_method_of_a_text_or_a_list_is_no_field() -> None:
    p = mw.Pipeline("methods")
    window = p.inject("a", source()).key_by(lambda v: "all").window(mw.windows.tumbling(10))
    window.aggregate("out", n=mw.agg.count("count"), first=mw.agg.first("q.title"), sum=mw.agg.sum("real"))
    h = mw.testing.Harness(p)
    for value in ("text", [1], 7, {"q": "text"}, {"q": {"title": "Nile"}, "count": 3, "real": 4}):
        h.send("a", value, timestamp=1)
    h.drain()
    assert h.output("out")[0].value == {
        "key": "all",
        "start": 0,
        "end": 10,
        "n": 1,
        "first": "Nile",
        "sum": 4,
    }


def test_a_class_is_a_function_of_a_value() -> None:
    p = mw.Pipeline("classes")
    numbers = p.inject("a", source()).map(lambda value: value["n"]).key_by(str)
    numbers.window(mw.windows.tumbling(10)).aggregate("out", total=mw.agg.sum(float), n=mw.agg.count(int))
    h = mw.testing.Harness(p)
    h.send("a", {"n": "7"}, timestamp=1)
    h.send("a", {"n": "7"}, timestamp=2)
    h.drain()
    assert [(record.key, record.value["total"], record.value["n"]) for record in h.output("out")] == [
        ("7", 14.0, 2)
    ]


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (mw.windows.sliding(10, 4), "a record is in 2 or 3 windows, by its timestamp"),
        (mw.windows.sliding(4, 10), "the last 6 of every 10 microseconds are in no window"),
        (mw.windows.sliding(10, 5), None),
    ],
)
def test_windows_that_do_not_meet_their_steps_are_a_warning(
    window: mw.windows.Window, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    mw.Pipeline("sliding").inject("a", source()).key_by("k").window(window)
    assert [words] * (words is not None) == [
        record.getMessage().rpartition("every, so " if words and "2 or 3" in words else ": ")[2]
        for record in caplog.records
    ]


def test_a_stream_of_another_pipeline_is_refused() -> None:
    one = mw.Pipeline("one").inject("a", source())
    two = mw.Pipeline("two").inject("a", source())
    with pytest.raises(mw.PipelineError, match="another pipeline"):
        one.union(two)


def test_a_picture_shows_what_is_read_through_operators() -> None:
    p = mw.Pipeline("picture")
    p.inject("a", source()).filter(bool).key_by("k").window(mw.windows.tumbling(1)).count("counts")
    assert "a.filter" in p.to_mermaid()


def test_the_harness_feeds_a_sink_in_memory_of_a_stream_without_a_name() -> None:
    p = mw.Pipeline("sinks")
    stream = p.inject("a", source())
    mapped, keyed, both = mw.sinks.Collect(), mw.sinks.Collect(), mw.sinks.Collect()
    stream.map(lambda value: value["n"]).sink(mapped)
    stream.key_by("k").filter(lambda value: value["n"] > 1).sink(keyed)
    stream.union(stream).sink(both)
    h = mw.testing.Harness(p)
    h.send("a", {"k": "x", "n": 1}, timestamp=1)
    h.send("a", {"k": "x", "n": 2}, timestamp=1)
    assert [record.value for record in mapped.records] == [1, 2]
    assert [(record.key, record.value["n"]) for record in keyed.records] == [("x", 2)]
    assert len(both.records) == 4
