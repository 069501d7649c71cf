"""Windows and joins end equal to the same query of Spark SQL in batch.

The second reference, beside the queries that are written in Python: of another make, with its own reading of
windows, sessions and NULL. One query of Spark answers for all seeds.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from tests.operators.feeding import Row, feed, finals, rows, source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEEDS = range(8)
STREAMS = ["left", "right"]
_SCHEMA = "seed INT, stream STRING, k STRING, n BIGINT, i BIGINT, o BIGINT, time BIGINT"

WINDOWS = {
    "tumbling": (mw.windows.tumbling(10), "window(at, '10 microseconds')"),
    "tumbling with an offset": (
        mw.windows.tumbling(10, offset=3),
        "window(at, '10 microseconds', '10 microseconds', '3 microseconds')",
    ),
    "sliding": (mw.windows.sliding(12, 4), "window(at, '12 microseconds', '4 microseconds')"),
    # Of records just the gap apart Spark makes one session, where there are two here: with whole microseconds
    # that is a gap of one less, and an end of one less.
    "session": (mw.windows.session(5), "session_window(at, '4 microseconds')"),
}


@pytest.fixture(scope="module")
def inputs() -> dict[int, list[Row]]:
    return {seed: rows(seed, STREAMS, count=60) for seed in SEEDS}


@pytest.fixture(scope="module")
def table(spark: SparkSession, inputs: dict[int, list[Row]]) -> DataFrame:
    """The records of all seeds; times are given as integers, so that no time zone matters."""
    found = [
        (seed, stream, value["k"], value["n"], value["i"], value["o"], time)
        for seed, mine in inputs.items()
        for stream, value, time in mine
    ]
    frame = spark.createDataFrame(found, _SCHEMA).coalesce(1)
    return frame.selectExpr("*", "timestamp_micros(time) AS at").cache()


def _windows(window: mw.windows.Window, lateness: int) -> mw.Pipeline:
    p = mw.Pipeline("windows")
    left, right = (p.inject(stream, source()) for stream in STREAMS)
    left.union(right).key_by("k").window(window, lateness=lateness).aggregate(
        "found",
        records=mw.agg.count(),
        total=mw.agg.sum("o"),
        least=mw.agg.min("n"),
        most=mw.agg.max("n"),
        mean=mw.agg.mean("n"),
        different=mw.agg.distinct("o"),
    )
    return p


@pytest.mark.parametrize("lateness", [0, 7])
@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_end_equal_to_spark_sql(
    kind: str, lateness: int, inputs: dict[int, list[Row]], table: DataFrame
) -> None:
    window, sql = WINDOWS[kind]
    name = sql.partition("(")[0]  # of the column that Spark makes
    shorter = 1 if kind == "session" else 0
    table.createOrReplaceTempView("records")
    query = f"""
        SELECT seed, k, unix_micros({name}.start) AS start, unix_micros({name}.end) + {shorter} AS end,
            count(*) AS records, sum(o) AS total, min(n) AS least, max(n) AS most, avg(n) AS mean,
            count(DISTINCT o) AS different
        FROM records GROUP BY seed, k, {sql}
    """
    wanted: dict[int, list[dict[str, Any]]] = {seed: [] for seed in SEEDS}
    for row in table.sparkSession.sql(query).collect():
        value = row.asDict()
        seed = value.pop("seed")
        wanted[seed].append({"key": value.pop("k"), **value})
    late = 0
    for seed, found in inputs.items():
        h = feed(_windows(window, lateness), found, seed, lateness=lateness)
        ours = finals(h, "found")
        late += h.status().late["found"]
        assert ours == sorted(wanted[seed], key=lambda value: (value["key"], value["start"])), seed
    assert bool(late) == bool(lateness)


@pytest.mark.parametrize(
    ("how", "sql"), [("inner", "INNER"), ("left", "LEFT"), ("right", "RIGHT"), ("outer", "FULL OUTER")]
)
def test_joins_end_equal_to_spark_sql(
    how: str, sql: str, inputs: dict[int, list[Row]], table: DataFrame
) -> None:
    before, after = 6, 11
    table.createOrReplaceTempView("records")
    query = f"""
        SELECT coalesce(l.seed, r.seed), l.i, r.i, greatest(l.time, r.time)
        FROM (SELECT * FROM records WHERE stream = 'left') l
        {sql} JOIN (SELECT * FROM records WHERE stream = 'right') r
        ON l.seed = r.seed AND l.k = r.k AND r.time - l.time BETWEEN -{before} AND {after}
    """
    wanted: dict[int, Counter[tuple[Any, ...]]] = {seed: Counter() for seed in SEEDS}
    for seed, *pair in table.sparkSession.sql(query).collect():
        wanted[seed][tuple(pair)] += 1
    for seed, found in inputs.items():
        p = mw.Pipeline("joins")
        left, right = (p.inject(stream, source()).key_by("k") for stream in STREAMS)
        left.join(right, within=(before, after), how=how, name="pairs")
        ours = Counter(
            (*(value and value["i"] for value in record.value.values()), record.timestamp)
            for record in feed(p, found, seed).output("pairs")
        )
        assert ours == wanted[seed], seed
