"""Hooks that hang or kill their worker, on Spark: they are named, a run can be stopped, nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.watch import text
from tests.hanging.hanging import WHOLE, counts, pipeline
from tests.spark.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_ROOT = Path(__file__).parents[2]


def test_a_hook_that_hangs_is_named_and_a_stop_ends_it_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "sign").touch()
    with mw.start(pipeline(tmp_path), store=tmp_path / "store", spark=spark, slow_after=1.5) as job:
        eventually(lambda: bool(job.status().slow))
        [note] = job.status().slow
        assert (note.computation, note.key, note.hook) == ("Hanging", "3", "process_record")
        assert job.view is not None
        assert "slow: process_record of Hanging, key '3', for " in text.status(job.view())
        assert job.view().to_value()["slow"][0]["key"] == "3"
        report = job.stop(timeout=0.5)
    assert report.epochs == 0
    (tmp_path / "sign").unlink()
    mw.run(pipeline(tmp_path), store=tmp_path / "store", spark=spark)
    assert counts(tmp_path) == WHOLE


@pytest.mark.parametrize(
    ("how", "compact_below"), [("exit", 0), ("crash", 4_000), ("kill", 0), ("kill", 4_000)]
)
def test_a_hook_that_kills_its_worker_is_named(
    how: str, compact_below: int, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "sign").touch()
    with pytest.raises(mw.UserCodeError, match="key '3': the Python worker died in it 4 times") as caught:
        mw.run(pipeline(tmp_path, how), store=tmp_path / "store", spark=spark, compact_below=compact_below)
    assert (caught.value.computation, caught.value.key) == ("Hanging", "3")
    (tmp_path / "sign").unlink()
    mw.run(pipeline(tmp_path, how), store=tmp_path / "store", spark=spark, compact_below=compact_below)
    assert counts(tmp_path) == WHOLE


def _run(folder: Path, *options: str, how: str = "hang") -> subprocess.Popen[str]:
    """``millwheel run``, in a process group of its own."""
    store = ["--store", os.fspath(folder / "store"), *options]
    settings = {"HANGING": os.fspath(folder), "HANGING_HOW": how, "SPARK_LOCAL_DIRS": os.fspath(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "millwheel.cli", "run", "tests.hanging.hanging:pipeline", *store],
        cwd=_ROOT,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is one of Linux")
@pytest.mark.parametrize("what", ["one large allocation", "many small ones", "the state"])
def test_a_hook_that_runs_into_the_limit_on_memory_is_named(
    what: str, tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "sign").touch()
    process = _run(tmp_path, "--drain", how=what)
    try:
        _, error = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 1
    assert error.startswith(
        "millwheel: computation 'Hanging', key '3': process_record raised MemoryError; it had Record("
    )
    (tmp_path / "sign").unlink()
    mw.run(pipeline(tmp_path), store=tmp_path / "store", spark=spark)
    assert counts(tmp_path) == WHOLE


@pytest.mark.parametrize("way", ["SIGINT", "stop"])
def test_a_run_that_hangs_is_ended_from_outside(way: str, tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "sign").touch()
    process = _run(tmp_path)
    try:
        eventually((tmp_path / "hangs").exists)
        if way == "stop":
            stop = [sys.executable, "-m", "millwheel.cli", "stop", "--store", os.fspath(tmp_path / "store")]
            stopped = subprocess.run([*stop, "--timeout", "30"], cwd=_ROOT, capture_output=True, text=True)
            assert stopped.returncode == 0, stopped.stderr
            assert "stopped after epoch 0" in stopped.stdout
        else:
            process.send_signal(signal.Signals[way])
            process.send_signal(signal.SIGTERM)  # the second time: at once
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert "hanging: 0 epochs" in out
    assert "Traceback" not in error
    (tmp_path / "sign").unlink()
    mw.run(pipeline(tmp_path), store=tmp_path / "store", spark=spark)
    assert counts(tmp_path) == WHOLE


def test_sigterm_to_the_whole_group_is_an_ordinary_stop(tmp_path: Path) -> None:
    (tmp_path / "sign").touch()
    process = _run(tmp_path)
    try:
        eventually((tmp_path / "hangs").exists)
        os.killpg(process.pid, signal.SIGTERM)
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert "hanging: 0 epochs" in out
    assert "gave up" not in error
    assert "Traceback" not in error


_KILLED = """
    import os, signal, sys
    from pathlib import Path
    import millwheel as mw
    from tests.hanging.hanging import WHOLE, counts, pipeline
    from tests.spark.waiting import eventually

    folder = Path(sys.argv[1])
    (folder / "sign").touch()
    job = mw.start(pipeline(folder), store=folder / "store")
    eventually((folder / "hangs").exists)
    from pyspark import SparkContext
    SparkContext._gateway.proc.kill()
    try:
        job.wait()
    except mw.MillWheelError as error:
        print(error)
    (folder / "sign").unlink()
    mw.run(pipeline(folder), store=folder / "store")
    print(counts(folder) == WHOLE)
"""


def test_the_death_of_the_jvm_is_said_plainly_and_another_run_starts_another_one(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_KILLED), os.fspath(tmp_path)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    lines = found.stdout.splitlines()
    assert lines[0].startswith("epoch 1: Spark's JVM has ended (it was killed by SIGKILL)"), found.stderr
    assert lines[-1] == "True"
    assert "Traceback" not in found.stderr
