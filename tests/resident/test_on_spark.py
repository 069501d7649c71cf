"""A resident task on Spark: it serves, it ends, and whatever happens to it, nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.spark import resident
from millwheel.spark.channel import Channel
from millwheel.spark.job_executor import SparkExecutor
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import load_error
from millwheel.worker.plan import Plan
from tests.spark.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_EPOCHS = 12
_KEYS = 5


class Counts(mw.Computation):
    """Counts a key's records, and does something else at one of them."""

    def __init__(self, act: Callable[[], None] | None = None) -> None:
        self.act = act

    def process_record(self, record: mw.Record) -> None:
        if self.act is not None and record.value == 10 * _KEYS:
            self.act()
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("counts", self.state["n"])


class Sums(mw.Computation):
    """A second level, so that an epoch has two commits."""

    def process_record(self, record: mw.Record) -> None:
        self.state["sum"] = self.state.get("sum", 0) + record.value
        self.produce("sums", self.state["sum"])


def _pipeline(out: Path, act: Callable[[], None] | None = None) -> mw.Pipeline:
    p = mw.Pipeline("resident")
    records = [mw.Record(value=n, timestamp=n, key=f"k{n % _KEYS}", id=n) for n in range(_EPOCHS * _KEYS)]
    p.inject("in", mw.injectors.Records(records, per_epoch=_KEYS))
    p.add(Counts(act), inputs={"in": mw.by_key}, outputs=["counts"])
    p.add(Sums(), inputs={"counts": lambda record: record.key[::-1]}, outputs=["sums"])
    p.sink("counts", mw.sinks.JsonLines(out / "counts"))
    p.sink("sums", mw.sinks.JsonLines(out / "sums"))
    return p


def _output(out: Path) -> dict[str, list[Any]]:
    return {
        name: sorted([record.key, record.value] for record in mw.sinks.JsonLines(out / name).records())
        for name in ("counts", "sums")
    }


WHOLE = {
    "counts": sorted([f"k{k}", n] for k in range(_KEYS) for n in range(1, _EPOCHS + 1)),
    "sums": sorted([f"{k}k", n * (n + 1) // 2] for k in range(_KEYS) for n in range(1, _EPOCHS + 1)),
}


@pytest.fixture
def as_jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs that were run as jobs of their own."""
    epochs: list[int] = []
    execute = SparkExecutor.execute

    def noted(self: SparkExecutor, plan: Any) -> Any:
        epochs.append(plan.epoch)
        return execute(self, plan)

    monkeypatch.setattr(SparkExecutor, "execute", noted)
    return epochs


@pytest.fixture
def active_jobs(spark: SparkSession) -> Callable[[], int]:
    return lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds())


@pytest.mark.parametrize("over", ["a Unix socket", "TCP"])
def test_compact_epochs_that_follow_each_other_share_one_task(
    over: str,
    spark: SparkSession,
    tmp_path: Path,
    as_jobs: list[int],
    active_jobs: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if over == "TCP":
        monkeypatch.setattr(resident, "is_local", lambda context: False)
    report = mw.run(_pipeline(tmp_path), store=tmp_path / "store", spark=spark)
    assert report.epochs > _EPOCHS - 1
    assert as_jobs == [1, 2, 3]
    assert _output(tmp_path) == WHOLE
    eventually(lambda: not active_jobs())


def test_it_can_be_turned_off(spark: SparkSession, tmp_path: Path, as_jobs: list[int]) -> None:
    report = mw.run(_pipeline(tmp_path), store=tmp_path / "store", spark=spark, resident=False)
    assert len(as_jobs) == report.epochs
    assert _output(tmp_path) == WHOLE


def _once(sign: Path) -> bool:
    """True the first time, in whatever process."""
    try:
        sign.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def test_one_that_is_killed_between_plan_and_answer_costs_a_job(
    spark: SparkSession, tmp_path: Path, as_jobs: list[int]
) -> None:
    sign = tmp_path / "killed"

    def die() -> None:
        if _once(sign):
            os.kill(os.getpid(), signal.SIGKILL)

    mw.run(_pipeline(tmp_path, die), store=tmp_path / "store", spark=spark)
    assert sign.exists()
    assert 11 in as_jobs
    assert _output(tmp_path) == WHOLE


def test_an_answer_that_is_lost_costs_a_job_which_finds_the_epoch_committed(
    spark: SparkSession, tmp_path: Path, as_jobs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    ask = resident.SparkResident.ask

    def loses(self: Any, plan: bytes) -> Any:
        answer = ask(self, plan)
        if not lost:
            lost.append(1)
            raise ConnectionResetError("the answer is lost")
        return answer

    monkeypatch.setattr(resident.SparkResident, "ask", loses)
    mw.run(_pipeline(tmp_path), store=tmp_path / "store", spark=spark)
    assert lost
    assert as_jobs[:4] == [1, 2, 3, 4]
    assert _output(tmp_path) == WHOLE


def test_stale_tasks_that_go_on_writing_change_nothing(
    spark: SparkSession, tmp_path: Path, as_jobs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them, one after the other, are given up with the plan in hand, and are not cancelled."""
    given_up: list[resident.SparkResident] = []
    kept: list[Channel] = []
    ask = resident.SparkResident.ask

    def gives_up(self: resident.SparkResident, plan: bytes) -> Any:
        if len(given_up) == 2:
            return ask(self, plan)
        assert self._channel is not None
        self._channel.send(resident.PLAN, [plan])
        kept.append(self._channel)
        self._channel = None
        given_up.append(self)
        raise ConnectionResetError("taken for dead")

    monkeypatch.setattr(resident.SparkResident, "ask", gives_up)
    monkeypatch.setattr(resident.SparkResident, "cancel", lambda self: None)
    monkeypatch.setattr(resident, "BACKOFF", 1)
    mw.run(_pipeline(tmp_path), store=tmp_path / "store", spark=spark)
    assert _output(tmp_path) == WHOLE
    for task, channel in zip(given_up, kept, strict=True):
        kind, _ = channel.receive(60.0)  # it has done what it was asked, before or after the job
        assert kind == resident.FRAMES
        channel.close()
        task.thread.join(60.0)
    assert _output(tmp_path) == WHOLE
    assert mw.run(_pipeline(tmp_path), store=tmp_path / "store", spark=spark).records_in == 0


def test_a_stale_task_that_wakes_when_later_epochs_are_committed_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign, wakes = tmp_path / "waits", tmp_path / "wakes"

    def wait() -> None:
        if _once(sign):
            while not wakes.exists():
                time.sleep(0.01)

    kept: list[Channel] = []
    ask = resident.SparkResident.ask

    def gives_up(self: resident.SparkResident, plan: bytes) -> Any:
        if kept or Plan.from_bytes(plan).epoch != 11:
            return ask(self, plan)
        assert self._channel is not None
        self._channel.send(resident.PLAN, [plan])
        eventually(sign.exists)
        kept.append(self._channel)
        self._channel = None
        raise ConnectionResetError("taken for dead")

    monkeypatch.setattr(resident.SparkResident, "ask", gives_up)
    monkeypatch.setattr(resident.SparkResident, "cancel", lambda self: None)
    mw.run(_pipeline(tmp_path, wait), store=tmp_path / "store", spark=spark)
    assert _output(tmp_path) == WHOLE
    wakes.touch()
    kind, parts = kept[0].receive(60.0)
    kept[0].close()
    assert kind == resident.FRAMES
    errors = [Frame.from_bytes(part).error for part in parts]
    assert all(isinstance(load_error(error), mw.FencedError) for error in errors), errors
    assert _output(tmp_path) == WHOLE
    assert mw.run(_pipeline(tmp_path), store=tmp_path / "store", spark=spark).records_in == 0


def test_one_that_is_idle_ends_and_gives_its_slot_back(
    spark: SparkSession,
    tmp_path: Path,
    as_jobs: list[int],
    active_jobs: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resident, "IDLE_AFTER", 0.5)
    source = tmp_path / "in"
    source.mkdir()

    def send(number: int) -> None:
        (source / f"{number}.jsonl").write_text(f'{{"t": {number}, "n": {number}}}\n')

    p = mw.Pipeline("idle")
    p.inject("in", mw.injectors.Files(source / "*.jsonl", timestamp="t"))
    p.add(Counts(), inputs={"in": lambda record: "all"}, outputs=["counts"])
    p.sink("counts", mw.sinks.JsonLines(tmp_path / "out"))
    with mw.start(p, store=tmp_path / "store", spark=spark) as job:
        for number in range(5):
            send(number)
            eventually(lambda: job.status().records_in == number + 1)  # noqa: B023
        eventually(lambda: not active_jobs())
        send(5)
        eventually(lambda: job.status().records_in == 6)
        assert len(as_jobs) < job.status().epochs  # there was one
    assert len(list(mw.sinks.JsonLines(tmp_path / "out").records())) == 6


def test_a_stop_cancels_one_whose_hook_hangs(spark: SparkSession, tmp_path: Path) -> None:
    sign = tmp_path / "hangs"

    def hang() -> None:
        if _once(sign):
            time.sleep(600)

    job = mw.start(_pipeline(tmp_path, hang), store=tmp_path / "store", spark=spark)
    eventually(sign.exists)
    report = job.stop(timeout=0.2)
    assert report.epochs == 10
    mw.run(_pipeline(tmp_path), store=tmp_path / "store", spark=spark)
    assert _output(tmp_path) == WHOLE


def test_settings_that_do_not_go_with_it_are_named(spark: SparkSession) -> None:
    class Context:
        master = "spark://somewhere:7077"

        def __init__(self, **settings: str) -> None:
            self._settings = settings

        def getConf(self) -> Any:
            class Conf:
                get = staticmethod(lambda name, default: self._settings.get(name, default))

            return Conf

    def reason(**settings: str) -> str | None:
        return resident.reason_against(
            Context(**{name.replace("_", "."): value for name, value in settings.items()})  # type: ignore[arg-type]
        )

    assert reason() is None
    assert reason(spark_speculation="true") is None
    threshold = {"spark_speculation": "true", "spark_speculation_task_duration_threshold": "10s"}
    assert "copy of the task" in str(reason(**threshold))
    assert "encrypted" in str(reason(spark_network_crypto_enabled="true"))
