"""Rows of windows in the store: found, checked, copied, counted, taken over and refused as rows are."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.master.diff import change_at_start
from millwheel.master.ending import Ending
from millwheel.model.graph import build
from millwheel.operators import foldings
from millwheel.store.base import Store
from millwheel.store.memory import MemoryStore
from millwheel.store.open import open_store
from millwheel.store.tools.check import check
from millwheel.store.tools.copy import copy
from millwheel.store.tools.export import states, timers
from millwheel.store.tools.forget import forget
from millwheel.watch.key_view import inspect
from tests.operators.feeding import source
from tests.store.driving import run


def pipeline(times: list[int], *, size: int = 100, **aggregates: Any) -> mw.Pipeline:
    p = mw.Pipeline("kept")
    found = [mw.Record(value={"k": f"k{n % 5}", "n": n}, timestamp=t) for n, t in enumerate(times)]
    windowed = p.inject("in", mw.injectors.Records(found)).key_by("k").window(mw.windows.tumbling(size))
    out = windowed.aggregate("out", **(aggregates or {"n": mw.agg.count(), "total": mw.agg.sum("n")}))
    out.sink(mw.sinks.Collect())
    return p


def emitted(p: mw.Pipeline) -> list[Any]:
    (sink,) = [sink for stream, sink in p.sinks if isinstance(sink, mw.sinks.Collect)]
    return sorted((r.key, r.value["start"], r.value["n"], r.value["total"]) for r in sink.records)


@pytest.fixture
def store() -> Store:
    return open_store("memory:")


def test_one_row_has_all_keys_of_a_tablet_and_window_and_the_store_is_sound(store: Store) -> None:
    run(pipeline([1, 2, 3, 4, 5] * 20), store, ending=Ending.LEAVE_OPEN)
    found = check(store)
    assert found.problems == []
    assert found.counts["keys in windows"] == found.counts["watermark timers"] == 5
    assert found.counts["rows"] <= 5


def test_a_damaged_row_of_a_window_is_found(store: Store) -> None:
    run(pipeline([1, 2, 3]), store, ending=Ending.LEAVE_OPEN)
    for shard in store.shards:
        with shard.snapshot() as snapshot:
            rows = [(key, value) for key, value in snapshot.scan(b"R", b"S")]
        shard.write([(key, value.replace(b"\xa2k1", b"\xa2k7")) for key, value in rows])
    assert any("key of another tablet" in problem for problem in check(store).problems)


def test_a_key_is_found_in_its_windows(store: Store) -> None:
    run(pipeline([1, 2, 3, 4, 5, 101, 102]), store, ending=Ending.LEAVE_OPEN)
    seen = inspect(store, "out", "k0")
    assert seen.found
    assert seen.state == {"100": [1, 5]}
    assert seen.timers == [{"tag": "end", "time": 200, "clock": "watermark"}]
    assert not inspect(store, "out", "k9").found
    table = {key: (state, kept) for _, key, _, _, state, _, kept in states(store, {}, range(64))}
    assert table["k1"][0] == '{"100": [1, 6]}'
    assert ("out", "k1", "watermark", "end", 200) in list(timers(store, range(64)))


def test_a_watermark_that_windows_hold_is_explained_by_one_of_their_keys() -> None:
    p = mw.Pipeline("held")
    p.inject("in", source()).key_by("k").window(mw.windows.tumbling(100)).count("out")
    h = mw.testing.Harness(p)
    h.send("in", {"k": "x"}, timestamp=5)
    h.send("in", {"k": "x"}, timestamp=105)
    h.advance("in", 50)
    assert h.low_watermark("out") == 50
    assert h.timers("out", "x") == [mw.Timer("end", 100, mw.WATERMARK)]
    assert h.state("out", "x") == {0: [1], 100: [1]}


def test_windows_go_with_a_copy_to_another_number_of_shards(store: Store) -> None:
    run(pipeline([1, 2, 3, 4, 5, 6]), store, ending=Ending.LEAVE_OPEN)
    target = MemoryStore(shards=8)
    copy(store, target)
    assert check(target).problems == []
    p = pipeline([1, 2, 3, 4, 5, 6, 150])
    run(p, target)
    assert emitted(p)[:5] == [
        ("k0", 0, 2, 5),
        ("k1", 0, 1, 1),
        ("k1", 100, 1, 6),
        ("k2", 0, 1, 2),
        ("k3", 0, 1, 3),
    ]


def test_what_is_forgotten_takes_its_windows_along(store: Store) -> None:
    run(pipeline([1, 2, 3]), store, ending=Ending.LEAVE_OPEN)
    q = mw.Pipeline("kept")
    q.inject("in", mw.injectors.Records([])).key_by("k").window(mw.windows.tumbling(10)).count("other")
    run(q, store)
    forget(store, "out", "a test")
    assert check(store).counts["rows"] == 0


def test_windows_that_an_earlier_version_kept_by_key_are_taken_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [1, 2, 3, 4, 5, 6, 101, 102]
    with monkeypatch.context() as patch:
        patch.setattr(foldings, "BY_COLUMNS", False)
        run(pipeline(times), store, ending=Ending.LEAVE_OPEN)
    assert "keys in windows" not in check(store).counts
    p = pipeline([*times, 103, 104, 104])
    run(p, store, due_limit=2)
    assert emitted(p) == [
        ("k0", 100, 1, 10), ("k1", 100, 1, 6), ("k2", 100, 1, 7), ("k3", 100, 1, 8), ("k4", 100, 1, 9),
    ]  # fmt: skip
    assert check(store).problems == []
    assert check(store).counts["rows"] == 0


@pytest.mark.parametrize("due_limit", [1, 2, 3])
def test_rows_by_key_of_an_earlier_version_are_taken_over_before_a_window_closes_however_few_are_due(
    due_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting(count: int) -> tuple[mw.Pipeline, mw.sinks.Collect]:
        p, found = mw.Pipeline("many"), mw.sinks.Collect()
        records = [mw.Record(value={"k": f"k{n % 200}"}, timestamp=n // 100) for n in range(count)]
        keyed = p.inject("in", mw.injectors.Records(records, per_epoch=300)).key_by("k")
        keyed.window(mw.windows.tumbling(100)).count("out").sink(found)
        return p, found

    store = MemoryStore(1)
    with monkeypatch.context() as patch:
        patch.setattr(foldings, "BY_COLUMNS", False)
        run(counting(200)[0], store, ending=Ending.LEAVE_OPEN)
    p, found = counting(600)
    run(p, store, due_limit=due_limit)
    assert [record.value["count"] for record in found.records] == [3] * 200


class _Remembers(mw.Computation):
    """Keeps something of its own, through a codec that its store does not name."""

    def process_record(self, record: mw.Record) -> None:
        self.state["seen"] = 1
        self.set_timer("later", 500)

    def process_timer(self, timer: mw.Timer) -> None:
        del self.state


@pytest.mark.parametrize("codec", [mw.codecs.json, mw.codecs.pickle, mw.codecs.msgpack])
def test_windows_in_the_place_of_a_computation_of_one_s_own_are_refused_whatever_its_codec(
    codec: Any,
) -> None:
    own = _Remembers()
    own.codec = codec
    p = mw.Pipeline("kept")
    p.inject("in", mw.injectors.Records([mw.Record(value={"k": "k0"}, timestamp=1)]))
    p.add(own, name="out", inputs={"in": mw.by("k")})
    store = MemoryStore(1)
    run(p, store, ending=Ending.LEAVE_OPEN)
    with pytest.raises(mw.PipelineError, match="another operator"):
        change_at_start(build(pipeline([1, 2])), store, ())
    with pytest.raises(mw.StoreError, match="another operator"):
        run(pipeline([1, 2]), store)


@pytest.mark.parametrize(
    ("size", "kept"),
    [
        (100, mw.agg.distinct("n")),
        (100, mw.agg.top("n", 2)),
        (100, mw.agg.approx_distinct("n")),
        (50, None),
        (25, None),
    ],
    ids=["distinct", "top", "approx_distinct", "smaller windows", "smaller ones that begin alike"],
)
def test_rows_by_key_of_other_aggregates_or_windows_are_refused_and_not_taken_for_numbers(
    size: int, kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(1)
    times = [101, 102, 103, 104] if size == 25 else [151, 152, 153, 154]
    with monkeypatch.context() as patch:
        patch.setattr(foldings, "BY_COLUMNS", False)
        before = pipeline(times, size=size, n=kept or mw.agg.max("n"))
        run(before, store, ending=Ending.LEAVE_OPEN)
    changed = pipeline(times, n=mw.agg.max("n"))
    with pytest.raises(mw.PipelineError, match="another operator"):
        change_at_start(build(changed), store, ())
    with pytest.raises(mw.StoreError, match="another operator"):
        run(changed, store)


@pytest.mark.parametrize(
    "changed",
    [
        {"size": 50},
        {"n": mw.agg.count(), "total": mw.agg.max("n")},
        {"n": mw.agg.count(), "total": mw.agg.sum("k")},
        {"n": mw.agg.count()},
        {"n": mw.agg.count(), "total": mw.agg.distinct("n")},
    ],
)
def test_an_operator_that_is_another_one_is_refused_while_it_has_open_windows(
    store: Store, changed: dict[str, Any]
) -> None:
    run(pipeline([1, 2, 3]), store, ending=Ending.LEAVE_OPEN)
    assert change_at_start(build(pipeline([1, 2, 3])), store, ()) == []
    with pytest.raises(
        mw.PipelineError, match="'out': the store has open windows of it that another operator"
    ):
        change_at_start(build(pipeline([1, 2, 3], **changed)), store, ())


def test_an_operator_may_change_once_its_windows_are_closed(store: Store) -> None:
    run(pipeline([1, 2, 3]), store)
    change_at_start(build(pipeline([1, 2, 3], n=mw.agg.max("n"))), store, ())


ROWS: dict[str, Any] = {
    "tumbling": lambda s: s.window(mw.windows.tumbling(20)).aggregate("out", n=mw.agg.first("n")),
    "of another size": lambda s: s.window(mw.windows.tumbling(30)).aggregate("out", n=mw.agg.first("n")),
    "sliding": lambda s: s.window(mw.windows.sliding(20, 10)).aggregate("out", n=mw.agg.first("n")),
    "of a sum": lambda s: s.window(mw.windows.tumbling(20), late="divert").aggregate(
        "out", n=mw.agg.sum("n")
    ),
    "with lateness": lambda s: s.window(mw.windows.tumbling(20), lateness=5).aggregate(
        "out", n=mw.agg.first("n")
    ),
    "with lateness, of a sum": lambda s: s.window(mw.windows.tumbling(20), lateness=5).aggregate(
        "out", n=mw.agg.sum("n")
    ),
    "session": lambda s: s.window(mw.windows.session(20)).aggregate("out", n=mw.agg.first("n")),
    "distinct": lambda s: s.distinct("out"),
    "distinct within": lambda s: s.distinct("out", within=9),
    "join": lambda s: s.join(s, within=9, name="out"),
    "top": lambda s: s.top("out", 1, by="n", window=mw.windows.tumbling(20)),
    "top by another": lambda s: s.top("out", 1, by="k", window=mw.windows.tumbling(20)),
}


def kept_by_key(make: Any) -> mw.Pipeline:
    p = mw.Pipeline("rows")
    found = [mw.Record(value={"k": f"k{n % 3}", "n": n}, timestamp=n) for n in range(25)]
    make(p.inject("in", mw.injectors.Records(found)).key_by("k"))
    return p


@pytest.mark.parametrize("before", ROWS)
def test_rows_of_an_operator_are_not_read_by_another_one(before: str) -> None:
    store = MemoryStore(1)
    run(kept_by_key(ROWS[before]), store, ending=Ending.LEAVE_OPEN)
    assert change_at_start(build(kept_by_key(ROWS[before])), store, ()) == []
    for other in ROWS.keys() - {before}:
        with pytest.raises(mw.PipelineError, match="another operator"):
            change_at_start(build(kept_by_key(ROWS[other])), store, ())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            lambda s: s.window(mw.windows.tumbling(20), lateness=5).collect("out"),
            lambda s: s.window(mw.windows.tumbling(20), early=7).collect("out"),
        ),
        (
            lambda s: s.window(mw.windows.session(5)).count("out"),
            lambda s: s.window(mw.windows.session(9), lateness=7).count("out"),
        ),
        (lambda s: s.distinct("out", within=5), lambda s: s.distinct("out", within=9)),
    ],
)
def test_what_does_not_change_the_form_of_rows_may_change(before: Any, after: Any) -> None:
    store = MemoryStore(1)
    run(kept_by_key(before), store, ending=Ending.LEAVE_OPEN)
    assert change_at_start(build(kept_by_key(after)), store, ()) == []


@pytest.mark.parametrize("by_columns", [True, False])
def test_a_value_that_cannot_be_added_is_an_error_with_its_record(
    by_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foldings, "BY_COLUMNS", by_columns)
    p = mw.Pipeline("bad")
    p.inject("in", source()).key_by("k").window(mw.windows.tumbling(100)).aggregate("out", s=mw.agg.sum("n"))
    h = mw.testing.Harness(p)
    h.send("in", {"k": "x", "n": 1}, timestamp=5)
    with pytest.raises(mw.UserCodeError, match=r"'out', key 'x': .*is not a number") as raised:
        h.send("in", {"k": "x", "n": "two"}, timestamp=7)
    assert raised.value.computation == "out"
    assert raised.value.key == "x"
    h.drain()
    assert [record.value["s"] for record in h.output("out")] == [1]
