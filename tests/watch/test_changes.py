"""Changes of the key intervals are seen wherever a pipeline is looked at, also after it has stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.job import Job
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.watch import metrics, text
from millwheel.watch.view import View, look
from tests.spark.sources import Feed
from tests.spark.waiting import eventually
from tests.watch.running import pipeline, running, visits, wall


@pytest.fixture
def rescaled(tmp_path: Path) -> View:
    """Of a pipeline that was rescaled while it ran, and has stopped."""
    feed = Feed({"only": visits(40)}, opened=20)
    with running(pipeline(feed), LmdbStore(tmp_path / "store", shards=2), slots=2) as job:
        eventually(lambda: job.status().records_in == 20)
        job.rescale(3)
        feed.opened = 40
        eventually(lambda: job.status().records_in == 40)
        _check(job)
    store = LmdbStore(tmp_path / "store")
    try:
        return look(store, wall())
    finally:
        store.close()


def _check(job: Job) -> None:
    report = job.status()
    assert [change["level"] for change in report.changes] == [1, 2]
    assert all(change["why"] == "rescaled from 2 to 3 slots" for change in report.changes)
    assert report.intervals["split"] == 4
    with pytest.raises(mw.PipelineError, match="slots is a number from 1 to 4096"):
        job.rescale(0)
    assert report.records["Visits"] == 40


def test_a_view_has_the_changes_with_reason_before_and_after(rescaled: View) -> None:
    change = rescaled.changes[0]
    assert change["why"] == "rescaled from 2 to 3 slots"
    assert change["before"] == [[0, 0], [32, 1]]
    assert change["after"] == [[0, 0], [21, 1], [32, 1], [43, 2]]
    assert rescaled.changed["split"] == 4
    assert {(part["level"], part["first"]) for part in rescaled.intervals} == {
        (level, first) for level in (1, 2) for first in (0, 21, 32, 43)
    }
    assert sum(part["rows"] for part in rescaled.intervals) == sum(c.rows for c in rescaled.computations)


def test_status_and_top_tell_them(rescaled: View) -> None:
    for shown in (text.status(rescaled), text.top(rescaled)):
        assert "rescaled from 2 to 3 slots" in shown
        assert "4 split" in shown


def test_metrics_count_them(rescaled: View) -> None:
    pytest.importorskip("prometheus_client")
    data, _ = metrics.exposition(rescaled)
    assert 'millwheel_interval_changes_total{kind="split",pipeline="visits"} 4.0' in data.decode()


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: LMDB opens a folder once in each."""
    call = "import sys; from millwheel.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", call, *arguments], capture_output=True, text=True)


def test_the_command_rescales_a_pipeline_that_runs(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    feed = Feed({"only": visits(40)}, opened=20)
    with running(pipeline(feed), LmdbStore(place, shards=2), slots=2) as job:
        eventually(lambda: job.status().records_in == 20)
        done = _command("rescale", "5", "--store", place, "--json")
        assert json.loads(done.stdout)["slots"] == 5, done.stderr
        feed.opened = 40
        eventually(lambda: job.status().records_in == 40)
        done = _command("rescale", "3", "--store", place)
        assert "3 slots after epoch" in done.stdout, "it is asked by its new sequencer"
        assert "64 slots at most, not 65" in _command("rescale", "65", "--store", place).stderr
        eventually(lambda: job.status().changes[-1]["why"] == "rescaled from 5 to 3 slots")
    done = _command("rescale", "3", "--store", place)
    assert done.returncode == 1
    assert "no pipeline runs" in done.stderr


def test_a_job_that_has_ended_is_not_rescaled(tmp_path: Path) -> None:
    with running(pipeline(Feed({"only": visits(4)}, opened=4)), LmdbStore(tmp_path / "s", shards=2)) as job:
        job.stop()
        with pytest.raises(mw.PipelineError, match="the job has ended: start the pipeline with other slots"):
            job.rescale(3)


def test_a_hot_key_is_in_the_status_by_name_with_its_share(tmp_path: Path) -> None:
    records = visits(3_000)
    with running(pipeline(Feed({"only": records}, opened=3_000)), LmdbStore(tmp_path / "s", shards=2)) as job:
        eventually(lambda: job.status().records_in == 3_000)
        key, share = job.status().hot_keys["Visits"]
        assert key == "regular"
        assert share == pytest.approx(1 / 3 + 2 / 3 / 7, abs=0.2)
        assert "the key 'regular' has" in str(job.status())
