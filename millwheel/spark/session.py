"""The Spark session: settings for low latency, and one session for a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from millwheel.errors import EngineError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

_SETTINGS = {
    # A loopback TCP socket between the JVM and its Python workers costs 40 ms a stage (delayed ACK).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark keeps 1,000 finished jobs with all their stages for its page: epochs are many.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    # Old broadcasts and RDDs are dropped when the JVM collects garbage: make it do so.
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.task.maxFailures": "4",
}
_SINCE = {"spark.python.unix.domain.socket.enabled": (4, 1)}
"""The first version of Spark with a setting, where it is not older than 3.5."""

LOG = "MILLWHEEL_SPARK_LOG"
"""The environment variable for the level of Spark's log; ``ERROR`` by default."""

_LOCAL_JAVA = "-XX:TieredStopAtLevel=1"
"""For the JVM of a local session, which moves bytes and schedules tasks.

The optimising compiler would take the cores from the workers for the first million records, without a
gain."""

_NO_CONNECT = (
    "millwheel runs its tasks as RDDs, which Spark Connect does not have. Run the driver as a classic Spark "
    "application (spark-submit, or SparkSession.builder.master(...) without remote(...) and SPARK_REMOTE); "
    "on Databricks use compute with dedicated access"
)


def settings_of(version: str) -> dict[str, str]:
    """Return millwheel's settings for a version of Spark: those that it has.

    >>> [name for name in settings_of("4.1.0") if name not in settings_of("4.0.5")]
    ['spark.python.unix.domain.socket.enabled']
    """
    had = _numbers(version)
    return {name: value for name, value in _SETTINGS.items() if had >= _SINCE.get(name, (3, 5))}


def java_of(version: str) -> str:
    """Return which versions of Java a version of Spark runs on.

    >>> java_of("3.5.9"), java_of("4.3.0")
    ('Java 8, 11 or 17', 'Java 17 or newer')
    """
    return "Java 8, 11 or 17" if _numbers(version) < (4, 0) else "Java 17 or newer"


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version.

    >>> _numbers("4.2.0.dev1"), _numbers("3.5.2-amzn-1")
    ((4, 2), (3, 5))
    """
    return tuple(int(number) for number in version.split(".")[:2])


def local_session(master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one: on this machine, or on a cluster.

    Executors of a cluster must reach the driver, so it is then not bound to loopback, and they start the
    Python that PYSPARK_PYTHON names on their own machines. ``settings`` override the defaults.
    """
    _import_pyspark()
    from pyspark.sql import SparkSession

    from millwheel.spark.jvm import forget_the_dead

    forget_the_dead()
    active = SparkSession.getActiveSession()
    if active is not None and master is None and not settings:
        return active
    local_context(master, settings)
    builder = SparkSession.builder
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def local_context(
    master: str | None = None, settings: Mapping[str, str] | None = None, *, java: str = ""
) -> SparkContext:
    """The context of `local_session`, without the 0.7 s that SQL takes to start.

    ``java`` are options for a JVM on this machine.
    """
    _import_pyspark()
    from pyspark import SparkConf, SparkContext
    from pyspark import __version__ as version

    from millwheel.spark.jvm import forget_the_dead

    forget_the_dead()
    active = SparkContext._active_spark_context
    if active is not None and master is None and not settings:
        return active
    _refuse_connect()
    if master is None:
        # Four attempts at a task: in plain local mode Spark gives up at the first lost worker.
        master = f"local[{os.cpu_count() or 1},4]"
    local = master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setAppName("millwheel").setMaster(master).setAll([*settings_of(version).items()])
    conf.setAll([*(settings or {}).items()])
    try:
        if SparkContext._gateway is None:
            start_jvm(conf, local and "spark.driver.extraJavaOptions" not in (settings or {}), java)
        context = SparkContext.getOrCreate(conf)
    except Exception as error:
        raise EngineError(
            f"Spark could not be started ({_first_line(error)}): Spark {version} needs {java_of(version)}; "
            "set JAVA_HOME, or install one (Debian: apt-get install openjdk-17-jre-headless)"
        ) from error
    context.setLogLevel(os.environ.get(LOG, "ERROR"))
    return context


def context_of(session: SparkSession) -> SparkContext:
    """The context of a session; an `EngineError` for Spark Connect, without one."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise EngineError(f"the session is one of Spark Connect: {_NO_CONNECT}")
    return session.sparkContext


def _refuse_connect() -> None:
    """Raises if this process is a client of Spark Connect, which has no contexts."""
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ and "SPARK_LOCAL_REMOTE" not in os.environ:
        raise EngineError(f"this process is a client of Spark Connect: {_NO_CONNECT}")


def _import_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise EngineError(f"PySpark cannot be imported ({error}): pip install 'pyspark>=3.5,<4.4'") from error


def start_jvm(conf: SparkConf, ours: bool, java: str) -> None:
    """Starts the JVM; a local one with an archive of its classes, if there is one."""
    from millwheel.spark.class_archive import archive
    from millwheel.spark.jvm import launch

    options = [*_log_options(), *([_LOCAL_JAVA, java] if ours else ())]
    option = "spark.driver.extraJavaOptions"
    given = conf.get(option, "")
    kept = archive() if ours else None
    if kept is not None:
        found = kept.find()
        if found is not None:
            # If the archive does not fit, the JVM starts without it, silently.
            with_archive = [*options, f"-XX:SharedArchiveFile={found}", "-Xlog:cds*=off"]
            conf.set(option, " ".join([*with_archive, given]).strip())
            try:
                launch(conf)
                return
            except Exception:
                found.unlink(missing_ok=True)
    conf.set(option, " ".join([*options, given]).strip())
    launch(conf)
    if kept is not None:
        kept.make_later()


def _log_options() -> list[str]:
    """The options for the JVM's log, unless the user has configured it."""
    home = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    if any(Path(home).glob("log4j2.*")):
        return []
    ours = Path(__file__).with_name("log4j2.properties")
    options = [f"-Dlog4j2.configurationFile=file:{ours}"]
    level = os.environ.get(LOG, "").lower()
    return (
        [*options, f"-Dmillwheel.spark.log={level}", f"-Dmillwheel.spark.log.tasks={level}"]
        if level
        else options
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
