"""What there is to see of a pipeline: the same from inside, from beside, and after it has stopped."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.codec import pack
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.memory import MemoryStore
from millwheel.watch.explain import explain
from millwheel.watch.history import Recorder, Sample, read_samples, read_watch, window
from millwheel.watch.view import Viewer, look
from tests.spark.sources import Feed
from tests.spark.waiting import eventually
from tests.store.driving import contents, take
from tests.watch.running import pipeline, running, stopped, visits, wall


def test_a_view_has_what_the_job_reports(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", shards=2)
    with running(pipeline(Feed({"only": visits(40)}, opened=40)), store) as job:
        eventually(lambda: job.status().records_in == 40)
        report, view = job.status(), look(store, wall())
        assert view.running is True
        assert (view.pipeline, view.owner, view.records_in) == ("visits", "process 1 on a test", 40)
        assert {part.name: part.records for part in view.computations} == report.records
        assert {part.name: part.produced for part in view.computations} == report.produced
        assert {part.name: part.low_watermark for part in view.computations} == report.low_watermarks
        assert {part.name: part.records for part in view.streams} == report.streams
        assert view.user == report.user == {"visits": 40}
        assert [part.level for part in view.computations] == [1, 2]


def test_a_stopped_pipeline_shows_the_same_but_that_it_runs(tmp_path: Path) -> None:
    store = stopped(tmp_path / "store")
    view = look(store, wall())
    assert view.running is False
    assert (view.records_in, view.rate) == (40, 0.0)
    visiting, totals = view.computations
    users = [record.value["user"] for record in visits(40)]
    assert (visiting.records, visiting.rows) == (40, len(set(users)))
    assert visiting.watermark_timers == len(set(users[30:])), "those of the last second"
    assert visiting.bytes > 0
    assert (totals.inputs, totals.outputs) == (["seconds"], ["totals"])
    (injector,) = view.injectors
    assert (injector.holder, injector.partition_count, injector.partitions[0].offset) == ("only", 1, 40)
    assert {part.name: part.sinks for part in view.streams} == {
        "in": [],
        "seconds": [],
        "totals": ["Collect"],
    }
    assert sum(part["rows"] for part in view.intervals) == visiting.rows + totals.rows
    assert {epoch["epoch"] for epoch in view.recent} == set(range(1, view.epoch + 1))
    store.close()


def test_a_view_is_json(tmp_path: Path) -> None:
    store = stopped(tmp_path / "store")
    value = look(store, wall()).to_value()
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    store.close()


def test_an_epoch_says_where_its_time_went(tmp_path: Path) -> None:
    store = stopped(tmp_path / "store")
    view = look(store, wall())
    for epoch in view.recent:
        assert set(epoch["phases"]) >= {"journal", "inject", "carry", "level 1", "level 2", "commit"}
        assert sum(epoch["phases"].values()) == pytest.approx(epoch["seconds"], abs=1e-5)
    assert sum(view.durations) == view.epochs
    assert view.seconds == pytest.approx(sum(epoch["seconds"] for epoch in view.recent), abs=1e-4)
    store.close()


def test_a_hot_key_is_named_where_it_is(tmp_path: Path) -> None:
    from millwheel.model.keys import tablet

    store = stopped(tmp_path / "store")
    hot = [part for part in look(store, wall()).intervals if part["hot_key"] == "regular"]
    (interval,) = hot
    assert interval["level"] == 1
    assert interval["first"] <= tablet("regular") < interval["last"]
    assert 0 < interval["hot_share"] <= 1
    store.close()


def test_the_lag_is_behind_the_time_that_is_given(tmp_path: Path) -> None:
    store = stopped(tmp_path / "store")
    low = look(store, 0).computations[0].low_watermark
    assert look(store, low + 5 * mw.SECOND).computations[0].lag == 5.0
    store.close()


def test_before_anything_ran_a_store_says_that_it_is_empty() -> None:
    with pytest.raises(mw.StoreError, match="no pipeline in it"):
        look(MemoryStore(1), 0)


def test_a_pipeline_that_has_not_run_yet_can_be_looked_at() -> None:
    store = MemoryStore(1)
    take(pipeline(Feed({"only": visits(4)}, opened=0)), store)
    view = look(store, 0)
    assert [part.low_watermark for part in view.computations] == [mw.MIN_TIME] * 2
    assert [(part.level, part.lag) for part in view.computations] == [(1, None), (2, None)]
    assert (view.epoch, view.running) == (0, None)


def test_looking_writes_nothing(tmp_path: Path) -> None:
    store = stopped(tmp_path / "store")
    before = [contents(shard) for shard in (store.journal, *store.shards)]
    look(store, wall())
    explain(store, "Totals")
    assert [contents(shard) for shard in (store.journal, *store.shards)] == before
    store.close()


class Ticks:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def epochs_of_one(store: MemoryStore, epochs: int, seconds: float) -> Ticks:
    """Runs epochs of one record each, so many seconds apart on the observer's clock."""
    ticks = Ticks()
    feed = Feed({"only": visits(epochs)}, opened=0)
    driver, executor = take(pipeline(feed), store, clock=lambda: int(ticks.seconds * mw.SECOND))
    driver.observer = Recorder(driver, clock=ticks)
    for _ in range(epochs):
        ticks.seconds += seconds
        feed.opened += 1
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    return ticks


def samples(store: MemoryStore) -> list[Sample]:
    with store.journal.snapshot() as snapshot:
        return read_samples(snapshot)


def test_samples_come_no_more_often_than_once_a_second() -> None:
    store = MemoryStore(1)
    epochs_of_one(store, epochs=50, seconds=0.1)
    assert 4 <= len(samples(store)) <= 6
    times = [sample.time for sample in samples(store)]
    assert min(b - a for a, b in itertools.pairwise(times)) >= mw.SECOND * 0.99


def test_the_history_is_a_ring_and_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.watch.history.SAMPLES", 8)
    store = MemoryStore(1)
    epochs_of_one(store, epochs=30, seconds=1.5)
    found = samples(store)
    assert [sample.epoch for sample in found] == list(range(23, 31))
    assert sum(key.startswith(b"h") for key in contents(store.journal)) == 8


def test_every_epoch_between_two_samples_is_in_the_later_one() -> None:
    store = MemoryStore(1)
    epochs_of_one(store, epochs=25, seconds=0.3)
    noted = [epoch["epoch"] for sample in samples(store) for epoch in sample.epochs]
    assert noted == list(range(1, noted[-1] + 1))
    with store.journal.snapshot() as snapshot:
        assert read_watch(snapshot).next == len(samples(store))


def test_an_epoch_is_read_as_it_was_noted_and_takes_little_room() -> None:
    store = MemoryStore(1)
    seen: list[dict[str, Any]] = []
    ticks = Ticks()
    feed = Feed({"only": visits(60)}, opened=0)
    driver, executor = take(pipeline(feed), store, clock=lambda: int(ticks.seconds * mw.SECOND))
    driver.observer = recorder = Recorder(driver, clock=ticks)
    recorder.on_epoch = lambda epoch, _: seen.append(dict(epoch))
    for number in range(60):
        ticks.seconds += 0.03
        feed.opened += 1
        executor.job = number if number % 2 else None
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    recorder.close()
    found = [epoch for sample in samples(store) for epoch in sample.epochs]
    for was, epoch in zip(seen, found, strict=True):
        assert epoch.pop("phases") == pytest.approx(was.pop("phases"), abs=1e-6)
        assert epoch.pop("seconds") == pytest.approx(was.pop("seconds"), abs=1e-6)
        assert epoch == was
    written = [value for key, value in contents(store.journal).items() if key.startswith(b"h")]
    empty = min(len(value) for value in written)
    assert sum(len(value) - empty for value in written) < 45 * len(found)


def test_samples_that_an_earlier_version_wrote_are_read() -> None:
    store = MemoryStore(1)
    epochs_of_one(store, epochs=5, seconds=0.6)
    now = samples(store)
    with store.journal.snapshot() as snapshot:
        keys = [key for key, _ in snapshot.scan(b"h", b"i")]
    store.journal.write([(key, pack(asdict(sample))) for key, sample in zip(keys, now, strict=True)], [])
    assert samples(store) == now


def test_a_viewer_reads_on_where_it_was() -> None:
    store = MemoryStore(1)
    ticks = Ticks()
    feed = Feed({"only": visits(9)}, opened=0)
    driver, executor = take(pipeline(feed), store, clock=lambda: int(ticks.seconds * mw.SECOND))
    driver.observer = Recorder(driver, clock=ticks)
    viewer = Viewer(store)
    for number in range(1, 6):
        ticks.seconds += 2
        feed.opened += 1
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
        viewer.look(0)
        assert [sample.epoch for sample in viewer.samples] == list(range(number + 1))


def sample(seconds: int, records: int) -> Sample:
    return Sample(seconds * mw.SECOND, 0, records, {}, {}, [])


def test_a_rate_is_taken_over_a_window_and_an_old_sample_holds_until_now() -> None:
    history = [sample(0, 0), sample(5, 50), sample(12, 120)]
    assert window(history, 15 * mw.SECOND, 10.0) == (history[1], 10.0)
    assert window(history, 100 * mw.SECOND, 10.0) == (history[2], 10.0)
    assert window(history[:1], 4 * mw.SECOND, 10.0) == (history[0], 4.0)
    assert window([], 4 * mw.SECOND, 10.0) is None


def test_rates_follow_what_is_read(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", shards=2)
    with running(pipeline(Feed({"only": visits(40)}, opened=40)), store) as job:
        eventually(lambda: job.status().records_in == 40)
        view = look(store, wall())
        assert view.rate > 0
        assert view.computations[0].rate_in == pytest.approx(view.rate)


def test_what_is_off_notes_nothing() -> None:
    store = MemoryStore(1)
    driver, executor = take(pipeline(Feed({"only": visits(5)}, opened=5)), store)
    plan = driver.next_plan()
    assert plan is not None
    driver.run(plan, executor)
    assert not [key for key in contents(store.journal) if key.startswith((b"h", b"watch"))]
    assert look(store, 0).records_in == 5
