"""Operators on a real Spark, over files, and under the simulator's failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from tests.operators.feeding import source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shop(orders: mw.Injector, payments: mw.Injector) -> tuple[mw.Pipeline, dict[str, mw.sinks.Collect]]:
    """Windows of every kind, a join, a union and steps before and behind them."""
    p = mw.Pipeline("shop")
    ordered, paid = p.inject("orders", orders), p.inject("payments", payments)
    big = ordered.filter(lambda v: v["price"] > 2)
    big.key_by("user").window(mw.windows.tumbling(10 * mw.SECOND)).aggregate(
        "sales", n=mw.agg.count(), total=mw.agg.sum("price")
    )
    ordered.key_by("user").map(lambda v: v["price"]).window(mw.windows.session(3 * mw.SECOND)).reduce(
        "sessions", max
    )
    ordered.key_by("order").join(paid.key_by("order"), within=5 * mw.SECOND, how="outer", name="matched").map(
        lambda pair: {"paid": pair["right"] is not None and pair["left"] is not None}
    ).named("state")
    p.stream("sales").top("best", 2, by="total", window=mw.windows.tumbling(20 * mw.SECOND))
    ordered.union(paid).flat_map(lambda v: [v["order"]] * 2).key_by(str).distinct("seen")
    streams = ("sales", "sessions", "matched", "state", "best", "seen")
    sinks = {stream: mw.sinks.Collect() for stream in streams}
    for stream, sink in sinks.items():
        p.stream(stream).sink(sink)
    return p, sinks


def records(kind: int, count: int = 120) -> list[mw.Record]:
    return [
        mw.Record(
            value={"order": n, "user": f"u{n % 4}", "price": n * 7 % 11},
            timestamp=(n * 700 + kind * (n % 9) * 1_300) * mw.MILLISECOND,
            id=f"{kind}-{n}",
        )
        for n in range(count)
        if not kind or n % 3
    ]


def make() -> mw.Pipeline:
    return shop(
        mw.injectors.Records(records(0, 40), per_epoch=5), mw.injectors.Records(records(1, 40), per_epoch=4)
    )[0]


def test_operators_end_the_same_whatever_fails() -> None:
    happened = mw.testing.simulate(make, seeds=range(60))
    assert happened["kill"]
    assert happened["repeat"]


def written(folder: Path, kind: int) -> str:
    folder.mkdir()
    lines = [json.dumps({**r.value, "at": r.timestamp, "id": r.id}) for r in records(kind)]
    for part in range(3):
        (folder / f"{part}.jsonl").write_text("\n".join(lines[part::3]) + "\n")
    return str(folder / "*.jsonl")


@pytest.mark.spark
def test_operators_give_on_spark_what_they_give_in_the_harness(spark: SparkSession, tmp_path: Path) -> None:
    pipeline, _ = shop(source(), source())
    h = mw.testing.Harness(pipeline)
    with h.epoch():
        for kind, stream in enumerate(("orders", "payments")):
            for r in records(kind):
                h.send(stream, {**r.value, "at": r.timestamp, "id": r.id}, r.timestamp, id=r.id)
    h.drain()
    files = [
        mw.injectors.Files(written(tmp_path / name, kind), timestamp="at", id="id")
        for kind, name in enumerate(("orders", "payments"))
    ]
    pipeline, sinks = shop(*files)
    report = mw.run(pipeline, store=str(tmp_path / "store"), spark=spark, compact_below=0, slots=3)
    assert report.dropped == dict.fromkeys(report.dropped, 0)
    for stream, sink in sinks.items():
        got = sorted((r.key, r.timestamp, repr(r.value)) for r in sink.records)
        assert got == sorted((r.key, r.timestamp, repr(r.value)) for r in h.output(stream)), stream
        assert got
