"""The cache under Spark, whose Python workers take turns: the same results, and few reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from tests.computations import Windower
from tests.servers.postgres import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_EPOCHS = 12
_KEYS = 20


def _run(
    spark: SparkSession,
    store: str,
    keys: int = _KEYS,
    per_epoch: int = 100,
    computation: mw.Computation | None = None,
    **options: Any,
) -> tuple[mw.Report, Counter[str]]:
    """Windows of keys that come in every epoch."""
    records = [
        mw.Record(value={"key": f"k{n % keys}"}, timestamp=n * 10 * mw.SECOND // per_epoch)
        for n in range(_EPOCHS * per_epoch)
    ]
    p = mw.Pipeline("cached")
    p.inject("in", mw.injectors.Records(records, per_epoch=per_epoch))
    p.add(computation or Windower("out"), inputs={"in": mw.by("key")}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    report = mw.run(p, store=store, spark=spark, progress=False, **options)
    return report, Counter(repr((r.key, r.timestamp, r.value)) for r in sink.records)


class Counts(mw.Computation):
    """Tells how many records of its key there were."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("out", self.state["n"])


@pytest.mark.parametrize("compact_below", [0, 4_000], ids=["wide", "compact"])
def test_workers_that_take_turns_share_what_they_keep(
    spark: SparkSession, tmp_path: Path, compact_below: int
) -> None:
    plain, expected = _run(spark, str(tmp_path / "plain"), compact_below=compact_below)
    report, found = _run(spark, str(tmp_path / "cached"), compact_below=compact_below, cache=10_000_000)
    assert found == expected
    assert plain.rows_cached == plain.rows_read == {"Windower": 0}
    # In the first epoch of a worker there is nothing yet; then only an attempt that was lost reads again.
    assert report.rows_cached["Windower"] > 0.9 * _KEYS * (_EPOCHS - 1)
    assert report.rows_read["Windower"] < 0.1 * report.rows_cached["Windower"]


def test_a_store_in_postgresql_has_a_cache_by_itself(
    spark: SparkSession, tmp_path: Path, postgres: Cluster
) -> None:
    _, expected = _run(spark, str(tmp_path / "plain"))
    report, found = _run(spark, postgres.make_database("with-a-cache"))
    assert found == expected
    assert report.rows_cached["Windower"] > 9 * report.rows_read["Windower"]
    report, found = _run(spark, postgres.make_database("without"), cache=0)
    assert found == expected
    assert report.rows_cached["Windower"] == 0


@pytest.mark.parametrize("cache", [64_000_000, 30_000], ids=["room for all", "for few"])
def test_rows_that_wait_are_found_by_whichever_worker_is_next(
    spark: SparkSession, tmp_path: Path, postgres: Cluster, cache: int
) -> None:
    import psycopg  # which not every machine has

    many: dict[str, Any] = {"keys": 400, "per_epoch": 400, "computation": Counts(), "compact_below": 0}
    _, expected = _run(spark, str(tmp_path / "plain"), **many)
    url = postgres.make_database(f"waiting-{cache}")
    report, found = _run(spark, url, cache=cache, **many)
    assert found == expected
    assert (report.rows_read["Counts"] > 2 * 400) == (cache < 64_000_000)
    with psycopg.connect(url) as connection:  # the last step leaves its rows in runs, not in their places
        query = "SELECT count(*) FROM millwheel.shard_00 WHERE key >= 'L' AND key < 'M'"
        assert connection.execute(query).fetchall() != [(0,)]


@pytest.mark.parametrize("wrong", [-1, "64 MB", 1.5, True])
def test_a_size_that_is_none_is_refused(spark: SparkSession, tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(mw.PipelineError, match="cache is a number of bytes"):
        _run(spark, str(tmp_path / "store"), cache=wrong)
