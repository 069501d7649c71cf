"""The systems of the field, each as commands that read a folder of files and write windows."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import data
from benchmarks.peers import environments, transform_with_state
from benchmarks.pipelines import windows

_ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).resolve().parent
CORES = 2
_PATIENCE = 900  # seconds for a run

Commands = list[list[str]]
Prepare = Callable[[data.Input, Path, int], Commands]
"""Of an input, a folder and the records of a batch: the commands."""


@dataclass(frozen=True)
class System:
    """How a system is started on an input, and how its windows are read.

    ``prepare`` does what is not timed (it may raise `Unavailable`) and returns the commands, which run side
    by side until all have ended.
    """

    name: str
    prepare: Prepare
    read: Callable[[Path], Counter[data.Window]]
    guarantee: str


class Failed(Exception):
    """A system did not come to its end, with what it said last."""


def run(system: System, source: data.Input, work: Path, batch: int) -> tuple[Counter[data.Window], float]:
    """Runs a system to the end of the input; the windows, and the seconds from its start to its end."""
    shutil.rmtree(work, ignore_errors=True)  # of one that failed
    work.mkdir(parents=True)
    commands = system.prepare(source, work, batch)
    log = work / "log"
    os.sync()  # what others have left for the disk is not to slow down who waits for it
    with open(log, "wb") as output:
        started = time.perf_counter()
        processes = [
            subprocess.Popen(
                command, cwd=_HERE, env=_environment(), stdout=output, stderr=output, preexec_fn=_pin
            )
            for command in commands
        ]
        try:
            codes = [process.wait(timeout=_PATIENCE) for process in processes]
        except subprocess.TimeoutExpired:
            raise Failed(f"{system.name} took more than {_PATIENCE} seconds") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        seconds = time.perf_counter() - started
    if any(codes):
        raise Failed(f"{system.name} failed: {log.read_text(errors='replace')[-2_000:]}")
    counts = data.without_last(system.read(work))
    shutil.rmtree(work)
    return counts, seconds


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
    python = os.fspath(environments.ensure(environments.BYTEWAX))
    recovery = work / "recovery"
    recovery.mkdir()
    subprocess.run([python, "-m", "bytewax.recovery", os.fspath(recovery), str(CORES)], check=True)
    addresses = ";".join(f"localhost:{port}" for port in _ports(CORES))
    flow = f"bytewax_windows:flow({os.fspath(source.folder)!r}, {os.fspath(work / 'out')!r}, {CORES})"
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
        lambda work: windows.read(work / "out"),
        "exactly once, durable with every epoch",
    ),
    System(
        "millwheel, operators",
        _millwheel("operators"),
        lambda work: windows.read_operators(work / "out"),
        "exactly once, durable with every epoch",
    ),
    System(
        "plain loop",
        _plain("by key"),
        lambda work: data.read_windows((work / "out").glob("*.jsonl")),
        "none: what a crash finds is lost",
    ),
    System(
        "plain loop, by window",
        _plain("by window"),
        lambda work: data.read_windows((work / "out").glob("*.jsonl")),
        "none: what a crash finds is lost",
    ),
    System(
        "Bytewax",
        _bytewax,
        lambda work: data.read_windows((work / "out").glob("*.jsonl")),
        "exactly once for files, a snapshot a second",
    ),
    System(
        "Spark groupBy",
        _spark("groupBy"),
        transform_with_state.read_windows,
        "exactly once, durable with every batch",
    ),
    System(
        "transformWithState",
        _spark("row"),
        transform_with_state.read_windows,
        "exactly once, durable with every batch",
    ),
    System(
        "transformWithState, Pandas",
        _spark("pandas"),
        transform_with_state.read_windows,
        "exactly once, durable with every batch",
    ),
    System(
        "PyFlink",
        _flink("default"),
        lambda work: data.read_windows((work / "out").glob("part-*")),
        "exactly once, a checkpoint a second",
    ),
    System(
        "PyFlink, tuned",
        _flink("tuned"),
        lambda work: data.read_windows((work / "out").glob("part-*")),
        "exactly once, a checkpoint a second",
    ),
)
