"""The JVM that this process starts for Spark, and its stderr."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JNetworkError

from millwheel.errors import EngineGone

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

_HARMLESS = (
    b"WARNING: Using incubator modules",
    b"Using Spark's default log4j profile",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"WARNING: A terminally deprecated method in sun.misc.Unsafe",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers",
)
"""Lines that are useless to a user. They appear while the JVM starts, or never."""


def launch(conf: SparkConf) -> None:
    """Starts a JVM for this process's SparkContext.

    Its stderr passes through this process, which filters what every start prints. What the JVM writes after
    this process has ended is not shown: mostly tracebacks of Python workers whose JVM has ended.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if os.environ.get("MILLWHEEL_SPARK_LOG"):
        SparkContext._ensure_initialized(conf=conf)
        return
    reader, writer = os.pipe()
    stderr = _Stderr(reader)
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": writer})  # type: ignore[no-untyped-call]
    except Exception:
        os.close(writer)
        stderr.fail()
        raise
    os.close(writer)
    stderr.started()
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


class _Stderr:
    """Copies a pipe to stderr: line by line while the JVM starts, then unfiltered."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._starting = True
        self._thread = threading.Thread(target=self._run, name="millwheel-stderr", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Ends the filtering."""
        self._starting = False

    def fail(self) -> None:
        """Waits until all of the JVM's output is shown."""
        self._thread.join(2.0)

    def _run(self) -> None:
        rest = b""
        while data := os.read(self._reader, 65_536):
            lines = (rest + data).splitlines(keepends=True)
            rest = b""
            if self._starting and not lines[-1].endswith(b"\n"):
                rest = lines.pop()
            _show(b"".join(line for line in lines if not line.startswith(_HARMLESS)))
        _show(rest)
        os.close(self._reader)


def _show(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:  # nobody reads it
        pass


_FAREWELL = 2.0  # seconds that a JVM may take to end after its connection broke


def check_alive(context: SparkContext, what: str, error: Exception) -> None:
    """Raises if the JVM has ended: nothing can be retried in this process."""
    gateway: Any = context._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    broken = isinstance(error, ConnectionError | Py4JNetworkError)
    if not broken and _stopped(context):
        raise EngineGone(
            f"{what}: Spark was stopped while the pipeline ran.\n"
            "Nothing is lost: the epoch is journaled; run again to continue it"
        ) from error
    if process is None:
        if not broken:
            return
        how: str | None = "it no longer answers"
    else:
        how = _end_of(process, _FAREWELL if broken else 0.05)
    if how is not None:
        raise EngineGone(
            f"{what}: Spark's JVM has ended ({how}). {_MEMORY}\n"
            "Nothing is lost: the epoch is journaled; run again to continue it"
        ) from error


def check_before_epochs(context: SparkContext, what: str, error: BaseException | None = None) -> None:
    """Raises if the JVM of this process has ended before there was an epoch."""
    process: subprocess.Popen[bytes] | None = getattr(context._gateway, "proc", None)
    broken = isinstance(error, ConnectionError | Py4JNetworkError)
    how = _end_of(process, _FAREWELL if broken else 0.0) if process is not None else None
    if how is not None:
        raise EngineGone(
            f"{what}: Spark's JVM has ended ({how}). {_MEMORY}\nNothing is lost: run again"
        ) from error


_MEMORY = "The kernel kills processes when memory is short (see dmesg): spark.driver.memory limits the JVM's."


def _end_of(process: subprocess.Popen[bytes], seconds: float) -> str | None:
    """How a process has ended; None: it has not, within some seconds."""
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    return f"it was killed by {signal.Signals(-status).name}" if status < 0 else f"its status is {status}"


def _stopped(context: SparkContext) -> bool:
    """Whether the context is stopped, or its JVM is about to end."""
    jvm: Any = context._jsc
    try:
        return jvm is None or bool(jvm.sc().isStopped())
    except Exception:  # it is ending
        return True


def forget_the_dead() -> None:
    """Lets this process start another Spark after the last one's JVM has ended."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is not None:
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
