"""Errors that come back from Spark's workers, and that nothing of their epoch is committed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from tests.computations import Counter, Hooks
from tests.spark.counting import in_order, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class NotToday(Exception):
    """Raised by user code."""


class Fragile(Counter):
    """Counts; refuses one record, unless it was fixed."""

    def __init__(self, refused: int | None) -> None:
        self.refused = refused

    def process_record(self, record: mw.Record) -> None:
        if record.value["n"] == self.refused:
            raise NotToday(record.value["n"])
        super().process_record(record)


def fragile(refused: int | None) -> tuple[mw.Pipeline, mw.sinks.Collect]:
    p = mw.Pipeline("fragile")
    p.inject("in", mw.injectors.Records(records(40), per_epoch=20))
    p.add(Fragile(refused), inputs={"in": mw.by("user")}, outputs=["counts"])
    sink = mw.sinks.Collect()
    p.sink("counts", sink)
    return p, sink


@pytest.mark.parametrize("compact_below", [0, 4_000], ids=["wide", "compact"])
def test_a_hook_s_error_arrives_with_everything_and_a_fixed_run_goes_on(
    compact_below: int, spark: SparkSession, tmp_path: Path
) -> None:
    p, failed = fragile(refused=33)
    with pytest.raises(mw.UserCodeError, match=r"'Fragile'.*'3'.*NotToday") as caught:
        mw.run(p, store=tmp_path / "store", spark=spark, compact_below=compact_below)
    error = caught.value
    assert (error.computation, error.key) == ("Fragile", "3")
    assert error.record == mw.Record(
        key="3", value={"user": 3, "n": 33}, timestamp=33 * mw.SECOND // 10, stream="in", id=33
    )
    assert isinstance(error.cause, NotToday)
    assert error.cause.args == (33,)
    assert "process_record" in str(error)

    p, fixed = fragile(refused=None)
    mw.run(p, store=tmp_path / "store", spark=spark, compact_below=compact_below)
    p, whole = fragile(refused=None)
    mw.run(p, store="memory:", spark=spark, compact_below=compact_below)
    assert in_order(failed.records + fixed.records) == in_order(whole.records)


@pytest.mark.parametrize("extractor", [mw.by_key, lambda record: record.key], ids=["one level", "two levels"])
def test_a_fixed_computation_runs_again_for_the_epoch_that_failed_behind_it(
    extractor: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing of the epoch was committed: neither of the one that failed, nor of the one before it."""

    def pipeline(factor: int) -> tuple[mw.Pipeline, mw.sinks.Collect]:
        p = mw.Pipeline("fixed")
        p.inject("in", mw.injectors.Records(records(5)))
        p.add(
            Hooks(lambda c, record: c.produce("mid", record.value["n"] * factor)),
            name="First",
            inputs={"in": mw.by("user")},
            outputs=["mid"],
        )
        p.add(
            Hooks(lambda c, record: c.produce("out", 12 // record.value if record.key != "0" else 0)),
            name="Second",
            inputs={"mid": extractor},
            outputs=["out"],
        )
        sink = mw.sinks.Collect()
        p.sink("out", sink)
        return p, sink

    p, _ = pipeline(factor=0)
    with pytest.raises(mw.UserCodeError) as caught:
        mw.run(p, store=tmp_path / "store", spark=spark)
    assert caught.value.computation == "Second"
    p, sink = pipeline(factor=1)
    mw.run(p, store=tmp_path / "store", spark=spark)
    assert sorted((record.key, record.value) for record in sink.records) == [
        ("0", 0),
        ("1", 12),
        ("2", 6),
        ("3", 4),
        ("4", 3),
    ]


def test_a_timer_s_error_arrives_with_the_timer(spark: SparkSession) -> None:
    def on_timer(c: Hooks, timer: mw.Timer) -> None:
        raise NotToday(timer.tag)

    p = mw.Pipeline("timers")
    p.inject("in", mw.injectors.Records(records(1)))
    p.add(Hooks(lambda c, r: c.set_timer("t", 10), on_timer), name="C", inputs={"in": mw.by("user")})
    with pytest.raises(mw.UserCodeError) as caught:
        mw.run(p, store="memory:", spark=spark)
    assert (caught.value.computation, caught.value.key) == ("C", "0")
    assert caught.value.record == mw.Timer("t", 10)
    assert isinstance(caught.value.cause, NotToday)


@pytest.mark.parametrize("compact_below", [0, 4_000], ids=["wide", "compact"])
def test_an_extractor_s_error_arrives_with_the_record(compact_below: int, spark: SparkSession) -> None:
    p = mw.Pipeline("keys")
    p.inject("in", mw.injectors.Records(records(3)))
    p.add(Counter(), inputs={"in": lambda record: record.value["n"]}, outputs=["counts"])
    with pytest.raises(mw.UserCodeError, match=r"'Counter', stream 'in'.*returned 0") as caught:
        mw.run(p, store="memory:", spark=spark, compact_below=compact_below)
    assert caught.value.record.value == {"user": 0, "n": 0}


def test_a_failed_job_says_so_where_it_is_asked(spark: SparkSession) -> None:
    p, _ = fragile(refused=3)
    job = mw.start(p, store="memory:", spark=spark)
    with pytest.raises(mw.UserCodeError):
        job.wait(60)
    with pytest.raises(mw.UserCodeError):
        job.status()
    with pytest.raises(mw.UserCodeError):
        job.stop()


def test_a_computation_that_does_not_pickle_says_so(spark: SparkSession) -> None:
    import threading

    class Locked(Counter):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    p = mw.Pipeline("locked")
    p.inject("in", mw.injectors.Records(records(3)))
    p.add(Locked(), inputs={"in": mw.by("user")}, outputs=["counts"])
    with pytest.raises(mw.MillWheelError, match="pickle"):
        mw.run(p, store="memory:", spark=spark)
