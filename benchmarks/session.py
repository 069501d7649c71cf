"""The Spark session that a benchmark runs in: millwheel's own settings, and what a peer needs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from benchmarks.processes import java_processes
from millwheel.spark.session import settings_of

_ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def session(
    work: Path, settings: Mapping[str, str] | None = None, memory: str = "2g", cores: int | None = None
) -> Iterator[SparkSession]:
    """A session of its own, with its files below ``work``, stopped at the end; or the active one as it is."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The workers find this package wherever the benchmark was started.
    path = os.environ.get("PYTHONPATH")
    if os.fspath(_ROOT) not in (path or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.fspath(_ROOT) + (os.pathsep + path if path else "")
    builder = SparkSession.builder.appName("benchmarks").master(f"local[{cores or os.cpu_count() or 1},4]")
    wanted = {
        **settings_of(pyspark.__version__),
        "spark.driver.memory": memory,
        "spark.local.dir": os.fspath(work / "spark"),
        "spark.sql.warehouse.dir": os.fspath(work / "warehouse"),
        **(settings or {}),
    }
    for name, value in wanted.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def local_dirs(spark: SparkSession) -> list[Path]:
    """Where Spark keeps its shuffle files.

    Its JVM cannot be asked (Py4J does not get past the classes of `SparkEnv`), so of the folders at the
    place that it was given these are the ones that are not older than the process.
    """
    place = Path(spark.sparkContext.getConf().get("spark.local.dir", tempfile.gettempdir()))
    born = min((jvm.create_time() for jvm in java_processes()), default=0.0)
    return [folder for folder in place.glob("blockmgr-*") if folder.stat().st_ctime >= born - 1]
