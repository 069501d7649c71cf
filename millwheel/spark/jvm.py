"""The JVM that this process starts for Spark, and what it writes to stderr."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkConf

_HARMLESS = (
    b"WARNING: Using incubator modules",
    b"Using Spark's default log4j profile",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"WARNING: A terminally deprecated method in sun.misc.Unsafe",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers",
)
"""Lines that say nothing to the user of a pipeline. They come while the JVM starts, or never."""


def launch(conf: SparkConf) -> None:
    """Starts a JVM for this process's SparkContext.

    Its stderr comes through this process, which leaves out what every start says. What the JVM writes when
    this process has ended is not seen: tracebacks of Python workers whose JVM is gone, for the most part.
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
    """Copies a pipe to stderr: line by line while the JVM starts, then as it comes."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._starting = True
        self._thread = threading.Thread(target=self._run, name="millwheel-stderr", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """From now on everything is shown."""
        self._starting = False

    def fail(self) -> None:
        """Waits until everything is shown that the JVM had to say."""
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
