"""A session of Spark Connect has no RDDs: it is refused with what to do instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.spark.session import local_context

pytestmark = pytest.mark.spark


def _named(module: str, **members: Any) -> Any:
    """An object of a class that is in a module of PySpark, which needs gRPC to be imported."""
    return type("Stub", (), {"__module__": module, **members})()


def _pipeline() -> mw.Pipeline:
    p = mw.Pipeline("refused")
    p.inject("in", mw.injectors.Records([])).sink(mw.sinks.Collect())
    return p


def test_a_session_of_spark_connect_is_refused(tmp_path: Path) -> None:
    session = _named("pyspark.sql.connect.session")
    for start in (mw.run, mw.start):
        with pytest.raises(mw.EngineError, match=r"is one of Spark Connect: .* Run the driver as a classic"):
            start(_pipeline(), store=tmp_path / "store", spark=session)
    assert not (tmp_path / "store").exists()


def test_a_process_that_is_a_client_of_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(mw.EngineError, match="this process is a client of Spark Connect: millwheel runs"):
        local_context("local[1]")


def test_a_data_frame_of_spark_connect_is_refused() -> None:
    frame = _named("pyspark.sql.connect.dataframe", columns=["time"])
    for make in (mw.injectors.SparkTable, mw.injectors.SparkStream):
        with pytest.raises(mw.InputError, match="is of a session of Spark Connect, which has no RDDs"):
            make(frame, timestamp="time")


_REAL = """
import sys
import millwheel as mw
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert spark.range(3).count() == 3
p = mw.Pipeline("refused")
p.inject("in", mw.injectors.Records([])).sink(mw.sinks.Collect())
try:
    mw.run(p, store=sys.argv[1], spark=spark)
except mw.EngineError as error:
    print(error)
try:
    mw.injectors.SparkTable(spark.range(3), timestamp="id")
except mw.InputError as error:
    print(error)
spark.stop()
"""


@pytest.mark.slow
def test_a_server_of_spark_connect_that_runs_is_refused_as_well(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    pytest.importorskip(
        "pyspark.sql.connect.session", reason="pip install 'pyspark[connect]'", exc_type=ImportError
    )
    command = [sys.executable, "-c", _REAL, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "the session is one of Spark Connect" in done.stdout
    assert "the DataFrame is of a session of Spark Connect" in done.stdout
