"""What a worker keeps for good is not gone through after each task."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.spark.tasks import Permanent, no_collection
from tests.computations import Echo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_worker_has_its_modules_out_of_the_collectors_sight(spark: SparkSession, tmp_path: Path) -> None:
    p = mw.Pipeline("collecting")
    p.inject("in", mw.injectors.Records([mw.Record(value=n, timestamp=n, key="k") for n in range(9)]))
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("out", mw.sinks.Collect())
    mw.run(p, store=tmp_path / "store", spark=spark)

    def frozen(_: int) -> int:
        return gc.get_freeze_count()

    counts = spark.sparkContext.parallelize(range(8), 8).map(frozen).collect()
    assert max(counts) > 10_000


def test_what_is_made_after_the_first_tasks_is_still_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    freezes: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: freezes.append(1))
    permanent = Permanent()
    for _ in range(1_000):
        permanent.task()
    assert len(freezes) == 4
    permanent.begin()
    permanent.task()
    assert len(freezes) == 5, "a new topology has modules of its own"


def test_the_collector_is_on_again_after_a_task_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)

    def failing() -> None:
        with no_collection():
            assert not gc.isenabled()
            raise ValueError("a hook")

    with pytest.raises(ValueError, match="a hook"):
        failing()
    assert gc.isenabled()
