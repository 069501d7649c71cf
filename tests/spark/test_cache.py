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


def _run(spark: SparkSession, store: str, **options: Any) -> tuple[mw.Report, Counter[str]]:
    """Windows of keys that come in every epoch."""
    records = [
        mw.Record(value={"key": f"k{n % _KEYS}"}, timestamp=n * mw.SECOND // 10) for n in range(_EPOCHS * 100)
    ]
    p = mw.Pipeline("cached")
    p.inject("in", mw.injectors.Records(records, per_epoch=100))
    p.add(Windower("out"), inputs={"in": mw.by("key")}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    report = mw.run(p, store=store, spark=spark, progress=False, **options)
    return report, Counter(repr((r.key, r.timestamp, r.value)) for r in sink.records)


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


@pytest.mark.parametrize("wrong", [-1, "64 MB", 1.5, True])
def test_a_size_that_is_none_is_refused(spark: SparkSession, tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(mw.PipelineError, match="cache is a number of bytes"):
        _run(spark, str(tmp_path / "store"), cache=wrong)
