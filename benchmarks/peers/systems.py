"""The systems of the field, each as commands that read a folder of files and write windows."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import counted, data
from benchmarks.peers import environments

_ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).resolve().parent
CORES = 2
_PATIENCE = 900  # seconds for a run
_ENDING = 30.0  # seconds that a process may go on after the one that started it
_LOOK = 0.005  # seconds between two looks for the first output

Commands = list[list[str]]
Prepare = Callable[[data.Input, Path, int], Commands]
"""Of an input, a folder and the records of a batch: the commands."""


@dataclass(frozen=True)
class System:
    """How a system is started on an input, and how its windows are read.

    ``prepare`` does what is not timed (it may raise `Unavailable`) and returns the commands, which run side
    by side until all have ended. ``first`` is the pattern, below its folder, of files that have output.
    """

    name: str
    prepare: Prepare
    read: Callable[[Path], Any]
    guarantee: str
    first: str = "out/part-*"


class Failed(Exception):
    """A system did not come to its end, with what it said last."""


def run(system: System, source: data.Input, work: Path, batch: int) -> tuple[Any, float]:
    """Runs a system to the end of the input; its result, and the seconds from its start to its end."""
    with _started(system, source, work, batch, {}) as (processes, began):
        _wait(system, processes, work)
        seconds = time.perf_counter() - began
    counts = system.read(work)
    _remove(work)
    return counts, seconds


def first_result(
    system: System, source: data.Input, work: Path, batch: int, environment: Mapping[str, str]
) -> float:
    """The seconds from the start of a system to the first bytes of its output; then it runs to its end."""
    with _started(system, source, work, batch, environment) as (processes, began):
        while not any(path.stat().st_size for path in work.glob(system.first)):
            if all(process.poll() is not None for process in processes):
                raise Failed(f"{system.name} ended without output: {_last_words(work)}")
            if time.perf_counter() - began > _PATIENCE:
                raise Failed(f"{system.name} had no output within {_PATIENCE} seconds")
            time.sleep(_LOOK)
        seconds = time.perf_counter() - began
        _wait(system, processes, work)
    _remove(work)
    return seconds


@contextmanager
def _started(
    system: System, source: data.Input, work: Path, batch: int, environment: Mapping[str, str]
) -> Iterator[tuple[list[subprocess.Popen[bytes]], float]]:
    """The processes of a system, which are ended at the end, and the time of their start."""
    _remove(work)  # of one that failed
    work.mkdir(parents=True)
    commands = system.prepare(source, work, batch)
    os.sync()  # what others have left for the disk is not to slow down who waits for it
    with open(work / "log", "wb") as output:
        began = time.perf_counter()
        processes = [
            subprocess.Popen(
                command,
                cwd=_HERE,
                env={**_environment(), **environment},
                stdout=output,
                stderr=output,
                preexec_fn=_pin,
            )
            for command in commands
        ]
        try:
            yield processes, began
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _remove(folder: Path) -> None:
    """Removes a folder, in which the JVM of a run that has ended may still be removing its own files."""
    end = time.monotonic() + _ENDING
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=time.monotonic() < end)
        time.sleep(_LOOK)


def _wait(system: System, processes: list[subprocess.Popen[bytes]], work: Path) -> None:
    try:
        codes = [process.wait(timeout=_PATIENCE) for process in processes]
    except subprocess.TimeoutExpired:
        raise Failed(f"{system.name} took more than {_PATIENCE} seconds") from None
    if any(codes):
        raise Failed(f"{system.name} failed with {codes}: {_last_words(work)}")


def _last_words(work: Path) -> str:
    return (work / "log").read_text(errors="replace")[-2_000:]


def _pin() -> None:
    """Of a larger machine a system gets as many cores as it was told of; its processes inherit them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


def _environment() -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.fspath(_ROOT) + (os.pathsep + path if path else "")}


def _millwheel(way: str) -> Prepare:
    def prepare(source: data.Input, work: Path, batch: int) -> Commands:
        module = "benchmarks.pipelines.windows_run"
        places = [os.fspath(place) for place in (source.folder, work / "out", work / "store")]
        return [[sys.executable, "-m", module, *places, str(CORES), way]]

    return prepare


def _parquet(source: data.Input, work: Path, batch: int) -> Commands:
    """The job in operators, from the same records as Parquet files."""
    folder = source.folder.with_name(f"{source.folder.name}-parquet")
    if not folder.is_dir():
        folder.mkdir()
        data.to_parquet(source.folder, folder)
    module = "benchmarks.pipelines.windows_run"
    places = [os.fspath(place) for place in (folder, work / "out", work / "store")]
    return [[sys.executable, "-m", module, *places, str(CORES), "operators", "parquet"]]


def _plain(way: str) -> Prepare:
    def prepare(source: data.Input, work: Path, batch: int) -> Commands:
        places = [os.fspath(source.folder), os.fspath(work / "out"), str(CORES), way]
        return [[sys.executable, "-m", "benchmarks.peers.plain", *places]]

    return prepare


def _spark(kind: str) -> Prepare:
    def prepare(source: data.Input, work: Path, batch: int) -> Commands:
        files = max(batch * (source.files - 1) // source.records, 1)
        places = [os.fspath(source.folder), os.fspath(work), str(CORES), str(files), kind]
        return [[sys.executable, "-m", "benchmarks.peers.spark_windows", *places]]

    return prepare


def _bytewax(source: data.Input, work: Path, batch: int) -> Commands:
    flow = f"bytewax_windows:flow({os.fspath(source.folder)!r}, {os.fspath(work / 'out')!r}, {CORES})"
    return bytewax_commands(flow, work)


def bytewax_commands(flow: str, work: Path) -> Commands:
    """Of a flow: a process for each core, with recovery."""
    python = os.fspath(environments.ensure(environments.BYTEWAX))
    recovery = work / "recovery"
    recovery.mkdir()
    subprocess.run([python, "-m", "bytewax.recovery", os.fspath(recovery), str(CORES)], check=True)
    addresses = ";".join(f"localhost:{port}" for port in _ports(CORES))
    # A snapshot a second: results are as fresh as an epoch of millwheel leaves them.
    options = ["-r", os.fspath(recovery), "-s", "1", "-b", "0", "-a", addresses]
    return [[python, "-m", "bytewax.run", flow, *options, "-i", str(number)] for number in range(CORES)]


def _ports(count: int) -> list[int]:
    """Free ones, found by asking for them all at once."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _flink(kind: str) -> Prepare:
    def prepare(source: data.Input, work: Path, batch: int) -> Commands:
        python = os.fspath(environments.ensure(environments.FLINK))
        places = [os.fspath(place) for place in (_joined(source), work / "out", work / "checkpoints")]
        return [[python, os.fspath(_HERE / "flink_windows.py"), *places, str(CORES), kind]]

    return prepare


def _flink_sql(source: data.Input, work: Path, batch: int) -> Commands:
    python = os.fspath(environments.ensure(environments.FLINK))
    places = [os.fspath(place) for place in (_joined(source), work / "out", work / "checkpoints")]
    return [[python, os.fspath(_HERE / "flink_sql.py"), *places, str(CORES)]]


def _pathway(source: data.Input, work: Path, batch: int) -> Commands:
    python = os.fspath(environments.ensure(environments.PATHWAY))
    places = [os.fspath(place) for place in (source.folder, work / "out", work / "recovery")]
    return [["env", f"PATHWAY_THREADS={CORES}", python, os.fspath(_HERE / "pathway_windows.py"), *places]]


def _joined(source: data.Input) -> Path:
    """The same records as a file for each reader, every one in the order of time."""
    folder = source.folder.with_name(f"{source.folder.name}-joined")
    if not folder.is_dir():
        folder.mkdir()
        paths = sorted(source.folder.glob("*.jsonl"))
        for number in range(CORES):
            with open(folder / f"log-{number}.jsonl", "wb") as target:
                for path in paths[number::CORES]:
                    target.write(path.read_bytes())
                # Each reader's watermark must pass the end: a record from the future for each of them.
                if paths[-1] not in paths[number::CORES]:
                    target.write(paths[-1].read_bytes())
    return folder


SYSTEMS = (
    System(
        "millwheel",
        _millwheel("computation"),
        lambda work: counted.of_computation(work / "out"),
        "exactly once, durable with every epoch",
    ),
    System(
        "millwheel, operators",
        _millwheel("operators"),
        lambda work: counted.of_operators(work / "out"),
        "exactly once, durable with every epoch",
    ),
    System(
        "millwheel, Parquet",
        _parquet,
        lambda work: counted.of_operators(work / "out"),
        "exactly once, durable with every epoch",
    ),
    System(
        "plain loop",
        _plain("by key"),
        lambda work: counted.of_lines((work / "out").glob("*.jsonl")),
        "none: what a crash finds is lost",
    ),
    System(
        "plain loop, by window",
        _plain("by window"),
        lambda work: counted.of_lines((work / "out").glob("*.jsonl")),
        "none: what a crash finds is lost",
    ),
    System(
        "Bytewax",
        _bytewax,
        lambda work: counted.of_lines((work / "out").glob("*.jsonl")),
        "exactly once for files, a snapshot a second",
    ),
    System(
        "Pathway",
        _pathway,
        lambda work: counted.of_lines((work / "out").glob("part-*")),
        "at least once, the input is logged",
    ),
    System(
        "Spark groupBy",
        _spark("groupBy"),
        counted.of_spark,
        "exactly once, durable with every batch",
        "out/part-*.json",
    ),
    System(
        "Flink SQL",
        _flink_sql,
        lambda work: counted.of_lines((work / "out").glob("part-*")),
        "exactly once, a checkpoint a second",
    ),
    System(
        "transformWithState",
        _spark("row"),
        counted.of_spark,
        "exactly once, durable with every batch",
        "out/part-*.json",
    ),
    System(
        "transformWithState, Pandas",
        _spark("pandas"),
        counted.of_spark,
        "exactly once, durable with every batch",
        "out/part-*.json",
    ),
    System(
        "PyFlink",
        _flink("default"),
        lambda work: counted.of_lines((work / "out").glob("part-*")),
        "exactly once, a checkpoint a second",
    ),
    System(
        "PyFlink, tuned",
        _flink("tuned"),
        lambda work: counted.of_lines((work / "out").glob("part-*")),
        "exactly once, a checkpoint a second",
    ),
)
