"""The Spark session: settings that low latency needs, and one session for a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millwheel.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # A loopback TCP socket between the JVM and its Python workers costs 40 ms a stage (delayed ACK).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Of jobs that are over, Spark keeps 1,000 and all their stages for its page: epochs are many.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    # Old broadcasts and RDDs are dropped when the JVM collects garbage: see that it does.
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.task.maxFailures": "4",
}

_LOCAL_JAVA = "-XX:TieredStopAtLevel=1"
"""For the JVM of a session that is ours alone: it moves bytes and schedules tasks. The optimising
compiler would take the cores from the workers for the first million records, and give nothing back."""


def local_session(master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one: on this machine, or with executors on a cluster.

    Executors of a cluster must reach the driver, so it is then not bound to loopback, and they start the
    Python that PYSPARK_PYTHON names on their own machines. ``settings`` go before ours.
    """
    if master is None or master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise EngineError(f"PySpark cannot be imported ({error}): pip install 'pyspark>=4.3,<4.4'") from error

    active = SparkSession.getActiveSession()
    if active is not None and master is None and not settings:
        return active
    if master is None:
        # Four attempts at a task: in plain local mode Spark would give up at the first lost worker.
        master = f"local[{os.cpu_count() or 1},4]"
    builder = SparkSession.builder.appName("millwheel").master(master)
    if master.startswith("local"):
        builder = builder.config("spark.driver.extraJavaOptions", _LOCAL_JAVA)
    for name, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise EngineError(
            f"Spark could not be started ({_first_line(error)}): it needs Java 17 or newer; "
            "set JAVA_HOME, or install one (Debian: apt-get install openjdk-17-jre-headless)"
        ) from error
    session.sparkContext.setLogLevel(os.environ.get("MILLWHEEL_SPARK_LOG", "ERROR"))
    return session


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
