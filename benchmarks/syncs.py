"""The disk syncs of a compact epoch: how many, of which file, and how long each takes.

The pipeline of the latency benchmark runs in one process, an epoch for each file of the writer, once plainly
for the times of an epoch's parts, and once under strace, which reports every sync. LMDB syncs twice for each
commit: its pages (fdatasync), then the meta page, which it writes through a file opened with O_DSYNC.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import results, writer
from benchmarks.pipelines import numbers
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker.step import Worker
from tests.servers.processes import Unavailable

_ROOT = Path(__file__).resolve().parent.parent
_RECORDS = 50  # a file of the writer at 1,000 records/s
_WARM_UP = 20  # epochs that are not counted
_BEGIN = ".begin"  # a file that is opened, so that the trace shows where counting starts
_CALLS = "trace=fsync,fdatasync,msync,openat,close,pwrite64,pwritev,write,writev"
_CASES = {"one stage": (1, False), "three stages": (3, False), "one stage, weak, without IDs": (1, True)}
_PARTS = ("plan", "journal the plan", "run", "journal the commit")


def run(*, quick: bool = False) -> dict[str, Any]:
    """Runs each case twice, prints a table, and writes the artifact."""
    epochs = 40 if quick else 200
    cases: dict[str, Any] = {}
    with results.scratch("syncs") as work:
        for number, (name, (stages, weak)) in enumerate(_CASES.items()):
            arguments = [str(stages), str(int(weak)), str(epochs)]
            parts = _start(work / f"{number}-plain", arguments)
            syncs = _traced(work / f"{number}-traced", arguments, epochs)
            cases[name] = {"parts": parts, "syncs": syncs}
    result = {"quick": quick, "epochs": epochs, "records_an_epoch": _RECORDS, "cases": cases}
    results.save(results.name("syncs", quick=quick), result)
    head = ["pipeline", "file", "call", "syncs an epoch", "ms each (median)", "p99"]
    print(
        results.table(
            head,
            [
                [name, *(sync[key] for key in ("file", "call", "an_epoch", "median_ms", "p99_ms"))]
                for name, case in cases.items()
                for sync in case["syncs"]
            ],
        )
    )
    print()
    print(
        results.table(
            ["pipeline", *(f"{part}, ms" for part in _PARTS)],
            [[name, *(case["parts"][part] for part in _PARTS)] for name, case in cases.items()],
        )
    )
    return result


def _start(work: Path, arguments: list[str], *tracer: str) -> dict[str, float]:
    """The median milliseconds of an epoch's parts, in a process of its own."""
    work.mkdir(parents=True)
    command = [*tracer, sys.executable, "-m", "benchmarks.syncs", os.fspath(work), *arguments]
    found = subprocess.run(command, check=True, cwd=_ROOT, stdout=subprocess.PIPE)
    parts: dict[str, float] = json.loads(found.stdout)
    return parts


def _traced(work: Path, arguments: list[str], epochs: int) -> list[dict[str, Any]]:
    tracer = shutil.which("strace")
    if tracer is None:
        raise Unavailable("strace is not installed: it reports the syncs (Debian: apt-get install strace)")
    trace = work.with_suffix(".trace")
    _start(work, arguments, tracer, "-f", "-y", "-T", "-e", _CALLS, "-o", os.fspath(trace))
    return summary(trace.read_text(errors="replace"), epochs)


_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (\S+) <([\d.]+)>$")
_NAMED = re.compile(r"^(\d+)<(.*?)>")


def summary(trace: str, epochs: int) -> list[dict[str, Any]]:
    """The syncs of a trace of strace after its mark: by file and call, how many and how long."""
    through: set[str] = set()  # descriptors whose every write is a sync
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts = False
    for line in trace.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        call, arguments, answer, seconds = match.groups()
        if call == "openat":
            if opened := _NAMED.match(answer):
                (through.add if "SYNC" in arguments else through.discard)(opened[1])
            counts = counts or f'{_BEGIN}"' in arguments
            continue
        target = _NAMED.match(arguments)
        if target is None:
            continue
        number, path = target.groups()
        if call == "close":
            through.discard(number)
        elif counts and (call in ("fsync", "fdatasync", "msync") or number in through):
            how = call if call in ("fsync", "fdatasync", "msync") else f"{call}, O_DSYNC"
            found[(_kind(Path(path)), how)].append(float(seconds) * 1e3)
    return [
        {
            "file": file,
            "call": call,
            "an_epoch": round(len(times) / epochs, 2),
            "median_ms": round(statistics.median(times), 2),
            "p99_ms": round(sorted(times)[max(-(-len(times) * 99 // 100) - 1, 0)], 2),
        }
        for (file, call), times in sorted(found.items())
    ]


def _kind(path: Path) -> str:
    """A file's part in an epoch: a name of the store, or the sink's output."""
    return path.parent.name if path.name == "data.mdb" else "output of the sink"


def _drive(work: Path, stages: int, weak: bool, epochs: int) -> dict[str, float]:
    source, out = work / "in", work / "out"
    source.mkdir()
    out.mkdir()
    graph = build(numbers.pipeline(source, out, stages=stages, weak=weak))
    store = LmdbStore(work / "store", shards=2)
    driver = Driver(
        graph, store, Options(slots=2), clock=lambda: time.time_ns() // 1_000, owner="a benchmark"
    )
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    watched = _Moments()
    driver.observer = watched
    rng = random.Random(0)
    spent: dict[str, list[float]] = {part: [] for part in _PARTS}
    for number in range(_WARM_UP + epochs):
        if number == _WARM_UP:
            (work / _BEGIN).touch()
        writer.send(source, f"log-{number:06d}", range(number * _RECORDS, (number + 1) * _RECORDS), rng)
        began = time.perf_counter()
        plan = driver.next_plan()
        assert plan is not None, "the injector does not see a file that was written"
        planned = time.perf_counter()
        driver.run(plan, executor)
        begin, journaled, ran, _, committed = watched.moments
        if number >= _WARM_UP:
            for part, seconds in zip(
                _PARTS, (planned - began, journaled - begin, ran - journaled, committed - ran), strict=True
            ):
                spent[part].append(seconds * 1e3)
    driver.close()
    return {part: round(statistics.median(times), 2) for part, times in spent.items()}


class _Moments:
    """An observer that keeps the moments of the last epoch."""

    moments: list[float]

    def epoch(self, plan: object, reports: object, moments: list[float]) -> None:
        self.moments = moments

    def notes(self) -> list[tuple[bytes, bytes]]:
        return []

    def idle(self) -> None:
        """Nothing is shown."""

    def follow(self, driver: Driver) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing is held."""


if __name__ == "__main__":
    print(json.dumps(_drive(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", int(sys.argv[4]))))
