"""`ui=` on a real Spark: the page of a job, from its start to its end."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from tests.spark.sources import Feed
from tests.spark.waiting import eventually
from tests.watch.running import pipeline, visits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}{path}", timeout=60) as answer:
        return json.load(answer)


def test_a_job_serves_its_page_until_it_ends(spark: SparkSession) -> None:
    feed = Feed({"only": visits(40)}, opened=40)
    with mw.start(pipeline(feed), store="memory:", spark=spark, ui=0) as job:
        url = job.ui
        assert url is not None
        assert url.startswith("http://127.0.0.1:")
        eventually(lambda: job.status().records_in == 40)
        assert job.view is not None
        assert job.view().records_in == 40
        view = get(url, "api/status")["view"]
        assert (view["running"], view["records_in"]) == (True, 40)
        key = get(url, "api/key?computation=Visits&key=regular")
        assert (key["codec"], key["state"]) == ("msgpack", {"seen": 14})
        eventually(lambda: len(get(url, "api/status")["view"]["recent"]) > 0)
    with pytest.raises(urllib.error.URLError):
        get(url, "api/status")


def test_wide_epochs_are_timed_by_level(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed({"only": visits(40)}, opened=40)
    with mw.start(pipeline(feed), store=tmp_path / "s", spark=spark, ui=0, compact_below=0) as job:
        assert job.ui is not None
        eventually(lambda: job.status().records_in == 40)
        eventually(lambda: len(get(job.ui or "", "api/status")["view"]["recent"]) > 0)
        (epoch, *_) = get(job.ui, "api/status")["view"]["recent"]
        assert not epoch["compact"]
        assert epoch["phases"]["level 1"] > 0
        assert sum(epoch["phases"].values()) == pytest.approx(epoch["seconds"], abs=1e-5)


def test_an_epoch_names_its_spark_job_where_spark_has_a_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    monkeypatch.setattr(type(context), "uiWebUrl", "http://127.0.0.1:4040")
    feed = Feed({"only": visits(40)}, opened=40)
    with mw.start(pipeline(feed), store=tmp_path / "s", spark=spark, ui=0) as job:
        eventually(lambda: job.status().records_in == 40)
        eventually(lambda: len(get(job.ui or "", "api/status")["view"]["recent"]) > 0)
        epochs = get(job.ui or "", "api/status")["view"]["recent"]
    for epoch in epochs:
        info = context.statusTracker().getJobInfo(epoch["job"])
        assert info is not None
        assert info.status == "SUCCEEDED"
    assert len({epoch["job"] for epoch in epochs}) == len(epochs)


def test_a_port_that_is_taken_stops_the_start_and_frees_the_store(
    spark: SparkSession, tmp_path: Path
) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(mw.StoreError, match="choose another port"):
            mw.run(
                pipeline(Feed({"only": visits(4)})),
                store=tmp_path / "s",
                spark=spark,
                ui=taken.getsockname()[1],
            )
    assert mw.run(pipeline(Feed({"only": visits(4)})), store=tmp_path / "s", spark=spark).records_in == 4


def test_without_watching_nothing_is_noted(spark: SparkSession, tmp_path: Path) -> None:
    from millwheel.store.lmdb.lmdb_store import LmdbStore
    from millwheel.watch.view import look

    mw.run(pipeline(Feed({"only": visits(4)})), store=tmp_path / "s", spark=spark, watch=False)
    store = LmdbStore(tmp_path / "s")
    view = look(store, 0)
    store.close()
    assert (view.records_in, view.recent, view.intervals) == (4, [], [])
