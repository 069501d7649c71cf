"""A name is any text without control characters, and the engine's own names never collide with it."""

from __future__ import annotations

import unicodedata
from collections import Counter as Count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.codec import pack
from millwheel.model.names import SourceName, folder_name
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_existing, open_store
from millwheel.store.tools.forget import forget
from millwheel.watch.explain import explain
from millwheel.watch.view import Viewer
from tests.computations import Counter
from tests.store.driving import run

NASTY = [
    "a",
    "a^",
    "@a",
    "@a^",
    "a#2",
    "a#1",
    "a#2#1",
    "a replayed to C",
    "a.late",
    "a.errors",
    "^",
    "#2",
    "@",
]
LONG = "ü" * 400
CONTROL = [chr(code) for code in range(0x100) if unicodedata.category(chr(code)) == "Cc"]

names = st.one_of(
    st.sampled_from([*NASTY, LONG, "\ud800", "0.9", "a 0.9", "'\"\\"]),
    st.text(st.characters(exclude_categories=["Cc"]), min_size=1, max_size=6),
)


class Windows(mw.Computation):
    """Counts by windows of ten; what comes late is counted apart."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, record: mw.Record) -> None:
        start = record.timestamp // 10 * 10
        self.state[start] = self.state.get(start, 0) + 1
        self.set_timer(str(start), start + 10)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce(self.output, self.state.pop(int(timer.tag)), timestamp=timer.timestamp - 1)


def windowed(streams: list[str], computations: list[str], injectors: list[mw.Injector]) -> mw.Pipeline:
    """Two injectors of the first stream and one of the second; two windows, one of them by percentile."""
    first, second, third, fourth = streams
    p = mw.Pipeline("named")
    for stream, injector in zip((first, first, second), injectors, strict=True):
        p.inject(stream, injector)
    one, two = computations
    p.add(Windows(third), name=one, inputs={first: mw.by("k"), second: mw.by("k")}, outputs=[third])
    p.add(Windows(fourth), name=two, inputs={third: mw.by_key}, outputs=[fourth], late="drop", watermark=0.9)
    return p


def records(base: int, count: int) -> list[mw.Record]:
    return [
        mw.Record(value={"k": f"k{n % 3}"}, timestamp=base + 7 * n, id=f"{base} {n}") for n in range(count)
    ]


def outcome(streams: list[str], computations: list[str], store: Any) -> Any:
    """All that can be seen of a run, by position instead of by name."""
    injectors = [mw.injectors.Records(records(base, 12)) for base in (0, 3, 5)]
    p = windowed(streams, computations, list(injectors))
    taps = [mw.sinks.Collect() for _ in streams]
    for stream, tap in zip(streams, taps, strict=True):
        p.sink(stream, tap)
    report = run(p, store, slots=2)
    return (
        [sorted((r.key, r.timestamp, repr(r.value)) for r in tap.records) for tap in taps],
        [report.low_watermarks[name] for name in computations],
        [report.records[name] for name in computations],
        [report.dropped[name] for name in computations],
        [report.streams[stream] for stream in streams],
        list(report.lag.values()),
    )


PLAIN = (["one", "two", "three", "four"], ["First", "Second"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    streams=st.lists(names, min_size=4, max_size=4, unique=True),
    computations=st.lists(names, min_size=2, max_size=2, unique=True),
)
def test_what_a_pipeline_does_does_not_depend_on_its_names(
    streams: list[str], computations: list[str]
) -> None:
    found = outcome(streams, computations, open_store("memory:", shards=2))
    assert found == outcome(*PLAIN, open_store("memory:", shards=2))


@pytest.mark.parametrize(
    ("streams", "computations"),
    [
        (["a", "a#2", "a^", "@a"], ["@a", "a"]),
        (["a#2", "a#2#2", "a", "a.late"], ["a^", "@a^"]),
        ([LONG, LONG + "1", LONG + "2", LONG + "3"], [LONG, LONG + "1"]),
        (["\ud800", "a replayed to C", "\u2028", "\u200b"], ["C", "\udfff"]),
    ],
)
def test_a_real_store_takes_any_name_and_shows_it(
    tmp_path: Path, streams: list[str], computations: list[str]
) -> None:
    assert outcome(streams, computations, LmdbStore(tmp_path / "nasty", shards=2, sync=False)) == outcome(
        *PLAIN, LmdbStore(tmp_path / "plain", shards=2, sync=False)
    )
    again = outcome(streams, computations, LmdbStore(tmp_path / "nasty", shards=2, sync=False))
    assert again[2] == [0, 0]  # read before, and known as read
    store = open_existing(str(tmp_path / "nasty"))
    try:
        view = Viewer(store).look(0)
        assert {part.name for part in view.computations} == set(computations)
        shown = [str(SourceName(streams[0])), str(SourceName(streams[0], 2)), str(SourceName(streams[1]))]
        assert sorted(part.name for part in view.injectors) == sorted(shown)
        assert [len(part.partitions) for part in view.injectors] == [1, 1, 1]
        for name in computations:
            assert explain(store, name).steps[0].who == name
        assert forget(store, computations[0], "a test").computation == computations[0]
    finally:
        store.close()


@settings(max_examples=40, deadline=None)
@given(streams=st.lists(names, min_size=4, max_size=4, unique=True), computations=st.permutations(NASTY))
def test_the_harness_takes_any_name(streams: list[str], computations: list[str]) -> None:
    def played(streams: list[str], computations: list[str]) -> Any:
        injectors: list[mw.Injector] = [mw.injectors.Records([]) for _ in range(3)]
        h = mw.testing.Harness(windowed(streams, computations, injectors), slots=2)
        for n in range(6):
            h.send(streams[n % 2], {"k": "k"}, timestamp=7 * n)
        h.advance(streams[0], 25)
        h.crash()
        h.advance(streams[1], 21)
        low = [h.low_watermark(name) for name in computations]
        why = [step.kind for step in h.explain_watermark(computations[1]).steps]
        h.drain()
        return low, why, [[(r.key, r.timestamp, r.value) for r in h.output(stream)] for stream in streams]

    assert played(streams, computations[:2]) == played(*PLAIN)


def test_a_stream_that_is_injected_twice_is_not_mixed_up_with_one_of_a_similar_name(tmp_path: Path) -> None:
    p = mw.Pipeline("twice")
    p.inject("a", mw.injectors.Records(records(0, 5)))
    p.inject("a", mw.injectors.Records(records(100, 5)))
    p.inject("a#2", mw.injectors.Records(records(200, 5)))
    tap = mw.sinks.Collect()
    p.add(Counter(), inputs={"a": mw.by("k"), "a#2": mw.by("k")}, outputs=["counts"])
    p.sink("a", tap)
    p.sink("a#2", tap)
    report = run(p, LmdbStore(tmp_path / "state", sync=False))
    assert report.records_in == 15
    assert Count(record.id for record in tap.records) == Count(
        f"{base} {n}" for base in (0, 100, 200) for n in range(5)
    )


def test_two_injectors_never_have_one_folder() -> None:
    found = [*NASTY, LONG, LONG + "1", ".", "..", "...", "%2E", "a/b", "a%2Fb", "a%252Fb", "\ud800", "%-"]
    assert len({folder_name(name) for name in found}) == len(found)
    assert all(len(folder_name(name)) <= 200 and "/" not in folder_name(name) for name in found)
    assert not {".", ".."} & {folder_name(name) for name in found}


@pytest.mark.parametrize("char", CONTROL)
def test_a_control_character_in_a_name_is_refused(char: str) -> None:
    name = f"a{char}b"
    p = mw.Pipeline("checked")
    inject = mw.injectors.Records([])
    for wrong in (
        lambda: mw.Pipeline(name),
        lambda: p.inject(name, inject),
        lambda: p.sink(name, mw.sinks.Collect()),
        lambda: p.add(Counter(), inputs={name: mw.by_key}),
        lambda: p.add(Counter(), inputs={"in": mw.by_key}, outputs=[name]),
        lambda: p.add(Counter(), name=name, inputs={"in": mw.by_key}),
    ):
        with pytest.raises(mw.PipelineError, match=r"control character .* at position 1") as refused:
            wrong()
        assert repr(char) in str(refused.value)


def test_a_partition_whose_name_has_a_control_character_is_refused() -> None:
    class Parted(mw.injectors.Records):
        def poll(self) -> dict[str, Any]:
            return {"p\n": 1}

    p = mw.Pipeline("checked")
    p.inject("in", Parted(records(0, 1)))
    with pytest.raises(mw.PipelineError, match=r"injector of 'in'.*a partition has the control character"):
        run(p, open_store("memory:"))


def diverting(**options: Any) -> mw.Pipeline:
    p = mw.Pipeline("checked")
    p.inject("in", mw.injectors.Records([], errors="divert"))
    p.add(Counter(), name="C", inputs={"in": mw.by_key}, late="divert", errors="divert", **options)
    return p


@pytest.mark.parametrize("stream", ["C.late", "C.errors", "in.errors"])
def test_a_stream_of_the_name_that_somebody_diverts_to_is_refused(stream: str) -> None:
    p = diverting(outputs=["counts"])
    p.inject(stream, mw.injectors.Records([]))
    with pytest.raises(mw.PipelineError, match=f"stream '{stream}' has the records .* another name"):
        mw.testing.Harness(p)
    p = diverting(outputs=["counts"])
    p.add(Counter(), name="D", inputs={"in": mw.by_key}, outputs=[stream])
    with pytest.raises(mw.PipelineError, match=f"stream '{stream}' has the records .* another name"):
        mw.testing.Harness(p)


def test_who_diverts_may_declare_the_stream_it_diverts_to() -> None:
    assert mw.testing.Harness(diverting(outputs=["counts", "C.late"])).output("C.late") == []


def test_an_injector_and_a_computation_that_divert_to_one_stream_are_refused() -> None:
    p = mw.Pipeline("checked")
    p.inject("in", mw.injectors.Records([], errors="divert"))
    p.add(Counter(), name="in", inputs={"in": mw.by_key}, errors="divert", outputs=["counts"])
    with pytest.raises(
        mw.PipelineError,
        match=r"computation 'in' and the injector of 'in' both divert to the stream 'in.errors'",
    ):
        mw.testing.Harness(p)


def test_a_name_like_a_diverted_one_is_any_other_where_nobody_diverts() -> None:
    p = mw.Pipeline("checked")
    p.inject("C.late", mw.injectors.Records([]))
    p.add(Counter(), name="C", inputs={"C.late": mw.by_key}, outputs=["C.errors", "counts"])
    h = mw.testing.Harness(p)
    h.send("C.late", {}, timestamp=1)
    assert len(h.output("C.late")) == 1


@pytest.mark.parametrize(("form", "age"), [(2, "an earlier"), (99, "a later")])
def test_a_store_of_another_format_is_refused(tmp_path: Path, form: int, age: str) -> None:
    p = mw.Pipeline("counted")
    p.inject("in", mw.injectors.Records(records(0, 1)))
    run(p, LmdbStore(tmp_path / "state", sync=False))
    store = LmdbStore(tmp_path / "state", sync=False)
    store.journal.write([(b"format", pack(form))])
    store.close()
    expected = f"format {form}, and this version of millwheel reads formats 3 and 4: {age} version wrote it"
    with pytest.raises(mw.StoreError, match=expected):
        open_existing(str(tmp_path / "state"))
    with pytest.raises(mw.StoreError, match=expected):
        run(p, LmdbStore(tmp_path / "state", sync=False))
