"""The peers that follow a folder in the latency benchmark, each started as processes of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from benchmarks.peers import environments, systems, transform_with_state
from benchmarks.pipelines import numbers

_HERE = Path(__file__).resolve().parent

Start = Callable[[SparkSession, Path, Path, Path], Any]
"""Of a Spark, the folder to follow, the folder of the stamps and one to work in: a context with a check."""


def transform(real_time: str | None = None) -> Start:
    """`transformWithState`, one batch after the other; or in Real-time Mode, which takes few queries."""

    @contextmanager
    def start(spark: SparkSession, source: Path, out: Path, work: Path) -> Iterator[Callable[[], None]]:
        query = transform_with_state.number_records(
            spark,
            source,
            work / "checkpoint",
            lambda batch, pairs: numbers.write_stamped(out / f"part-{batch}", pairs),
            real_time=real_time,
        )

        def check() -> None:
            error = query.exception()
            if error is not None:
                raise error

        try:
            yield check
        finally:
            query.stop()

    return start


@contextmanager
def real_time(spark: SparkSession, source: Path, out: Path, work: Path) -> Iterator[Callable[[], None]]:
    """`transformWithState` in Real-time Mode, with Spark's list of permitted queries set aside.

    It reads no files: the reason that Spark gives is the one that is shown, and why it is not Kafka.
    """
    spark.conf.set(_ALLOWLIST, "false")
    try:
        with transform("5 seconds")(spark, source, out, work) as ended:

            def check() -> None:
                try:
                    ended()
                except StreamingQueryException as error:
                    if (limit := _LIMIT.search(str(error))) is None:
                        raise
                    raise environments.Unavailable(
                        f"{limit[1].strip()} From Kafka: {_without_kafka()}"
                    ) from None

            yield check
    finally:
        spark.conf.unset(_ALLOWLIST)


_ALLOWLIST = "spark.sql.streaming.realTimeMode.allowlistCheck"
_MOST_TEXT = 200  # characters of what mvn says
_LIMIT = re.compile(r"\[STREAMING_REAL_TIME_MODE\.\w+\] (.*?) SQLSTATE", re.DOTALL)


def _without_kafka() -> str:
    """Why Real-time Mode is not run from Kafka."""
    from tests.servers.jars import fetched
    from tests.servers.processes import Unavailable

    version = pyspark.__version__
    try:
        fetched(f"spark-kafka-{version}", "org.apache.spark", "spark-sql-kafka-0-10_2.13", version)
    except Unavailable as reason:
        said = environments.without_addresses(str(reason))[:_MOST_TEXT]
        return f"Spark's own source for it cannot be had: {said}"
    return "this benchmark has no such turn"


def flink(mode: str) -> Start:
    """PyFlink, with Python in a process beside the JVM, or in threads of it."""

    @contextmanager
    def start(spark: SparkSession, source: Path, out: Path, work: Path) -> Iterator[Callable[[], None]]:
        python = os.fspath(environments.ensure(environments.FLINK))
        places = [os.fspath(place) for place in (source, out, work / "checkpoints")]
        command = [python, os.fspath(_HERE / "flink_numbers.py"), *places, str(systems.CORES), mode]
        # Python in a thread of the JVM does not know of its environment.
        paths = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = subprocess.run(paths, capture_output=True, text=True, check=True).stdout.strip()
        with _running("PyFlink", [command], work, PYTHONPATH=packages) as check:
            yield check

    return start


@contextmanager
def bytewax(spark: SparkSession, source: Path, out: Path, work: Path) -> Iterator[Callable[[], None]]:
    """Bytewax in a process for each core, a snapshot a second."""
    flow = f"bytewax_numbers:flow({os.fspath(source)!r}, {os.fspath(out)!r}, {systems.CORES})"
    with _running("Bytewax", systems.bytewax_commands(flow, work), work) as check:
        yield check


@contextmanager
def _running(
    name: str, commands: list[list[str]], work: Path, **environment: str
) -> Iterator[Callable[[], None]]:
    """Processes that run until the end of the context; the check raises where one has ended."""
    with open(work / "log", "wb") as log:
        processes = [
            subprocess.Popen(
                command,
                cwd=_HERE,
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for command in commands
        ]

    def check() -> None:
        if any(process.poll() is not None for process in processes):
            raise RuntimeError(f"{name} ended: {(work / 'log').read_text(errors='replace')[-2_000:]}")

    try:
        yield check
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)  # with its own processes: the group is theirs alone
            process.wait()
