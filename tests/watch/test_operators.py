"""What there is to see of operators: windows kept as columns, derived streams, the keys of a window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel.store.base import Store
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.watch.explain import explain
from millwheel.watch.key_view import inspect
from millwheel.watch.metrics import exposition
from millwheel.watch.view import View, look
from tests.spark.sources import Feed
from tests.spark.waiting import eventually
from tests.watch.running import operators, running, visits, wall


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with windows of the fourth second open."""
    store = LmdbStore(tmp_path / "store", shards=2)
    with running(operators(Feed({"only": visits(40)}, opened=35)), store) as job:
        eventually(lambda: job.status().records_in == 35)
        yield store


@pytest.fixture
def view(store: Store) -> View:
    return look(store, wall())


def test_a_view_has_the_figures_of_windows_kept_as_columns(view: View) -> None:
    counts, best = view.computations
    users = [record.value["user"] for record in visits(35)]
    kept = [user for user in users if user != "user 2"]
    assert (counts.name, counts.records, best.name) == ("counts", len(kept), "best")
    assert counts.produced == len(
        {(place // 10, user) for place, user in enumerate(users[:30])}
        - {(second, "user 2") for second in range(3)}
    )
    assert best.records == counts.produced
    open_still = set(users[30:]) - {"user 2"}
    assert (counts.rows, counts.watermark_timers) == (len(open_still), len(open_still))
    assert counts.low_watermark == best.low_watermark == 3_500_000
    assert counts.bytes > 0


def test_each_stream_has_a_name_of_its_own_and_those_that_operators_derive_from_it(view: View) -> None:
    streams = {part.name: part for part in view.streams}
    assert len(streams) == len(view.streams)
    assert streams["in"].derived == ["in.filter"]
    assert streams["in.filter"].consumers == ["counts"]
    assert streams["counts"].derived == ["counts 2"]
    assert streams["counts 2"].consumers == ["best"]
    best = next(part for part in view.computations if part.name == "best")
    assert best.inputs == ["counts 2"]


def test_no_two_metrics_have_the_same_labels(view: View) -> None:
    pytest.importorskip("prometheus_client")
    data, _ = exposition(view)
    samples = [line.rpartition(" ")[0] for line in data.decode().splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    assert any('stream="counts 2"' in sample for sample in samples)


def test_a_key_of_a_window_kept_as_columns_is_shown_as_its_row_would_be(store: Store) -> None:
    found = inspect(store, "counts", "regular")
    assert (found.found, found.state) == (True, {"3000000": [2]})
    assert found.timers == [{"tag": "end", "time": 4_000_000, "clock": "watermark"}]
    assert not inspect(store, "counts", "user 2").found
    assert "'regular'" in repr(inspect(store, "best", "").state)


def test_an_explanation_says_how_windows_are_kept(store: Store) -> None:
    assert "its windows are kept as columns" in str(explain(store, "counts"))
    assert "its windows are kept by key" in str(explain(store, "best"))
    assert "it waits for the injector in, which writes in.filter" in str(explain(store, "best"))
