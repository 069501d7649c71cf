"""Recovery: from kill -9 of the driver to the first new output, against the size of the state.

A pipeline with many keys in state and a light load beside them is killed, the driver alone, and started
again at once, as a supervisor would. What is measured contains the start of Python, of Spark and of its
workers; that of a store with hardly any state is the part that has nothing to do with recovery.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks import chart, results
from benchmarks.pace import size_of
from benchmarks.pipelines import sweeps

_ROOT = Path(__file__).resolve().parent.parent
_FILL = 600.0  # seconds that filling the state may take
_PATIENCE = 240.0  # and a recovery: much, as a machine may be busy
_POLL = 0.01
_FILLED = "filled"


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs every size, prints a table, and writes the artifacts."""
    sizes = (1_000, 20_000) if quick else (1_000, 100_000, 1_000_000, 3_000_000)
    rounds = min(rounds, 1) if quick else rounds
    points = []
    label = results.name("recovery", quick=quick)
    with results.scratch("recovery") as work:
        for keys in sizes:
            points.append(measure(work / f"{keys}", keys, rounds))
            print(f"{keys:,} keys: {points[-1]['median']:.1f} s", flush=True)
            results.save(label, {"quick": quick, "points": points})
    rows = [[p["keys"], p["store_bytes"] / 1e6, p["median"], max(p["seconds"])] for p in points]
    print(results.table(["keys", "store, MB", "seconds to the first new output", "longest"], rows))
    chart.curves(
        results.artifact(f"{label}.png"),
        "From kill -9 to the first new output",
        {
            "MB of the store": (
                "seconds",
                {"millwheel": ([p["store_bytes"] / 1e6 for p in points], [p["median"] for p in points])},
            )
        },
    )
    return {"quick": quick, "points": points}


def measure(work: Path, keys: int, rounds: int) -> dict[str, Any]:
    """Fills the state, then kills the driver as often as asked."""
    out = work / "out"
    out.mkdir(parents=True)
    seconds = []
    process = _start(work, keys)
    try:
        _wait(lambda: (work / _FILLED).exists(), process, _FILL, work)
        for _ in range(rounds):
            _wait(lambda: any(out.glob("*.time")), process, _PATIENCE, work)
            os.kill(process.pid, signal.SIGKILL)  # the driver alone: what it leaves behind is its own affair
            killed = time.time_ns()
            process.wait()
            process = _start(work, keys)
            _wait(lambda killed=killed: _first(out, killed) is not None, process, _PATIENCE, work)
            seconds.append(((_first(out, killed) or killed) - killed) / 1e9)
            for path in out.glob("*.time"):
                path.unlink()
    finally:
        process.kill()
        process.wait()
    return {
        "keys": keys,
        "store_bytes": size_of(work / "store"),
        "seconds": [round(value, 2) for value in seconds],
        "median": round(statistics.median(seconds), 2),
    }


def _first(out: Path, after: int) -> int | None:
    """The first output after a moment; a worker of the dead driver may still have written one before."""
    moments = [int(path.read_text()) for path in out.glob("*.time")]
    return min((moment for moment in moments if moment > after + _LAST_BREATH), default=None)


_LAST_BREATH = 1_500_000_000
"""Nanoseconds in which workers whose driver is dead may still end a task: no new driver is up by then."""


def _start(work: Path, keys: int) -> subprocess.Popen[bytes]:
    path = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.fspath(_ROOT) + (os.pathsep + path if path else "")}
    with open(work / "log", "ab") as log:
        command = [sys.executable, "-m", "benchmarks.recovery", os.fspath(work), str(keys)]
        return subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=log, stderr=log)


def _wait(condition: Any, process: subprocess.Popen[bytes], limit: float, work: Path) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if process.poll() is not None:
            said = (work / "log").read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"the driver ended with {process.returncode}: {said}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {limit:.0f} seconds")
        time.sleep(_POLL)


def _drive(work: Path, keys: int) -> None:
    """The driver that is killed."""
    with mw.start(sweeps.beating(keys, work / "out"), store=work / "store", progress=False) as job:
        while job.wait(0.2) is None:
            if job.status().records.get("Keeps", 0) >= keys:
                (work / _FILLED).touch()


if __name__ == "__main__":
    _drive(Path(sys.argv[1]), int(sys.argv[2]))
