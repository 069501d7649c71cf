"""A store as Spark tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.cli import main
from millwheel.spark.store_reader import NAMES
from millwheel.store.open import open_store
from millwheel.tables import export
from millwheel.watch.view import look
from tests.spark.sources import Feed
from tests.spark.waiting import eventually
from tests.watch.running import HOSTILE, pipeline, stopped, visits, wall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=["lmdb", "postgres"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path | str:
    """The store of a pipeline that has stopped, with a hold in it."""
    folder: Path | str = tmp_path_factory.mktemp("tables") / "store"
    if request.param == "postgres":
        folder = f"{request.getfixturevalue('database')}?schema=tables"
    hold = mw.Record(value={"user": HOSTILE, "hold": True}, timestamp=4 * mw.SECOND)
    stopped(folder, [*visits(40), hold]).close()
    return folder


def test_states_are_rows_that_sql_can_ask(spark: SparkSession, path: Path | str) -> None:
    mw.read_store(spark, path).create_views("m_")
    found = spark.sql(
        "select key, get_json_object(state, '$.seen') as seen, bytes, length(data) as length "
        "from m_state where computation = 'Visits' order by key"
    ).collect()
    users = [record.value["user"] for record in visits(40)] + [HOSTILE]
    assert {row.key: int(row.seen) for row in found} == {user: users.count(user) for user in users}
    assert all(row.bytes == row.length > 0 for row in found)


def test_timers_and_holds_are_rows_with_times(spark: SparkSession, path: Path | str) -> None:
    timers = mw.read_store(spark, path).timers
    (hold,) = timers.where("kind = 'hold'").collect()
    assert (hold.computation, hold.key, hold.tag, hold.time) == (
        "Visits",
        HOSTILE,
        "open visit",
        4 * mw.SECOND,
    )
    (moment,) = timers.where("kind = 'hold'").selectExpr("unix_micros(timestamp) as t").collect()
    assert moment.t == 4 * mw.SECOND
    store = open_store(path)
    pending = look(store, wall()).computations[0].watermark_timers
    store.close()
    assert timers.where("kind = 'watermark'").count() == pending > 0


def test_watermarks_epochs_and_intervals_are_those_of_the_view(spark: SparkSession, path: Path | str) -> None:
    tables = mw.read_store(spark, path)
    store = open_store(path)
    view = look(store, wall())
    store.close()
    last = tables.watermarks.where("computation = 'Visits'").orderBy("time", ascending=False).first()
    assert last is not None
    assert (last.low_watermark, last.records) == (view.computations[0].low_watermark, 41)
    assert [row.epoch for row in tables.epochs.orderBy("epoch").collect()] == [
        e["epoch"] for e in view.recent
    ]
    phases = tables.epochs.selectExpr("phases['commit'] as commit").first()
    assert phases is not None
    assert phases.commit > 0
    intervals = tables.intervals.selectExpr("sum(rows) as rows").first()
    assert intervals is not None
    assert intervals.rows == tables.state.count()


def test_a_pipeline_that_runs_in_this_session_can_be_read(spark: SparkSession, tmp_path: Path | str) -> None:
    feed = Feed({"only": visits(40)}, opened=40)
    with mw.start(pipeline(feed), store=tmp_path / "store", spark=spark) as job:
        eventually(lambda: job.status().records_in == 40)
        tables = mw.read_store(spark, tmp_path / "store")
        assert tables.state.where("computation = 'Visits'").count() == 8
        feed.opened, feed.ended = 40, True
        eventually(lambda: job.status().low_watermarks["Totals"] == mw.MAX_TIME)
        assert tables.timers.count() == 0
    assert mw.read_store(spark, tmp_path / "store").state.count() == tables.state.count() > 0


def test_the_codecs_of_a_pipeline_read_its_states(spark: SparkSession, tmp_path: Path | str) -> None:
    class Pickled(mw.Computation):
        codec = mw.codecs.pickle

        def process_record(self, record: mw.Record) -> None:
            self.state = {"seen": record.value}

    p = mw.Pipeline("pickled")
    p.inject("in", mw.injectors.Records([mw.Record(value=7, timestamp=1, key="a")]))
    p.add(Pickled(), inputs={"in": mw.by_key})
    mw.run(p, store=tmp_path / "store", spark=spark)
    (row,) = mw.read_store(spark, tmp_path / "store", p).state.collect()
    assert (row.codec, json.loads(row.state)) == ("pickle", {"seen": 7})
    (row,) = mw.read_store(spark, tmp_path / "store").state.collect()
    assert row.codec == "raw"


def test_a_store_that_is_made_anew_at_the_same_place_is_the_one_that_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    import shutil

    for value in (1, 2):
        p = mw.Pipeline("again")
        p.inject("in", mw.injectors.Records([mw.Record(value={"user": f"u{value}"}, timestamp=1)]))
        p.add(_Keeps(), inputs={"in": mw.by("user")})
        mw.run(p, store=tmp_path / "store", spark=spark)
        assert [row.key for row in mw.read_store(spark, tmp_path / "store").state.collect()] == [f"u{value}"]
        shutil.rmtree(tmp_path / "store")


class _Keeps(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = 1


@pytest.mark.parametrize("where", ["nothing here", "memory:"])
def test_what_cannot_be_read_is_said(spark: SparkSession, where: str) -> None:
    with pytest.raises(mw.StoreError):
        mw.read_store(spark, where)


def test_an_export_counts_its_rows_while_it_writes_them(
    spark: SparkSession, path: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {name: getattr(mw.read_store(spark, path), name).count() for name in NAMES}

    def read_again(session: SparkSession) -> None:
        raise AssertionError("what was written is read again")

    monkeypatch.setattr(type(spark), "read", property(read_again))
    assert export(spark, str(path), str(tmp_path / "export"), None) == expected


def test_an_export_is_parquet_that_spark_reads(
    spark: SparkSession, path: Path | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "export", str(path), str(tmp_path / "export"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    tables = mw.read_store(spark, path)
    for name in NAMES:
        found = spark.read.parquet(str(tmp_path / "export" / name))
        wanted = getattr(tables, name)
        assert found.count() == wanted.count() == rows[name] > 0
        assert found.dtypes == wanted.dtypes
        if name not in ("watermarks", "intervals"):  # what they have of a second depends on when one looks
            exported, queried = (
                sorted(table.collect(), key=lambda row: str(row[:4])) for table in (found, wanted)
            )
            assert exported == queried
    states = spark.read.parquet(str(tmp_path / "export" / "state"))
    assert states.where(f"key = 'regular' and get_json_object(state, '$.seen') = '{14}'").count() == 1
    assert main(["store", "export", str(path), str(tmp_path / "export")]) == 1
    assert "is not empty" in capsys.readouterr().err
