"""The peers that follow a folder in the latency benchmark, each started as processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
