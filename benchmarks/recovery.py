"""Recovery: from kill -9 of the driver to the first new output, against the size of the state.

A pipeline with many keys in state and a light load beside them is killed, the driver alone, and started
again at once, as a supervisor would. What is measured contains the start of Python, of Spark and of its
workers; that of a store with hardly any state is the part that has nothing to do with recovery.

With ``objects`` the store is a folder of objects, and the working copies are lost with the driver: it is the
host that is new. With bytes of a row, rows do not compress, and the load reads a hundred of them: the first
output waits for them. PostgreSQL is given by the URL of an empty database for each size, with ``{keys}`` in
it.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
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
_SETTLED = 64 << 20  # bytes of the log that a snapshot may be behind: as after any time of light load
_GRACE = 120  # seconds that a folder keeps the log: more is only room on the disk here


def run(
    *,
    quick: bool = False,
    rounds: int = 3,
    stores: Sequence[str] | None = None,
    keys: Sequence[int] | None = None,
    row_bytes: int | None = None,
) -> dict[str, Any]:
    """Runs every size, prints a table, and writes the artifacts."""
    sizes = (1_000, 20_000) if quick else (1_000, 100_000, 1_000_000, 3_000_000)
    rounds = min(rounds, 1) if quick else rounds
    if stores or keys or row_bytes:
        return _compare(stores or ["lmdb"], keys or sizes, rounds, row_bytes)
    points = []
    label = results.name("recovery", quick=quick)
    with results.scratch("recovery") as work:
        for size in sizes:
            points.append(measure(work / f"{size}", size, rounds))
            print(f"{size:,} keys: {points[-1]['median']:.1f} s", flush=True)
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


def _compare(
    stores: Sequence[str], sizes: Sequence[int], rounds: int, row_bytes: int | None
) -> dict[str, Any]:
    """The same sizes on several stores."""
    points = []
    for keys in sizes:
        for store in stores:
            with results.scratch("recovery") as work:
                found = measure(work / "one", keys, rounds, store, row_bytes)
            points.append({"store": store.partition(":")[0], **found})
            results.save("recovery-stores", {"row_bytes": row_bytes, "points": points})
            print(f"{points[-1]['store']}, {keys:,} keys: {found['median']:.1f} s", flush=True)
    rows = [[p["store"], p["keys"], p["store_bytes"] / 1e6, p["median"], max(p["seconds"])] for p in points]
    print(results.table(["store", "keys", "store, MB", "seconds to the first new output", "longest"], rows))
    return {"points": points}


def measure(
    work: Path, keys: int, rounds: int, store: str = "lmdb", row_bytes: int | None = None
) -> dict[str, Any]:
    """Fills the state, then kills the driver as often as asked."""
    out = work / "out"
    out.mkdir(parents=True)
    seconds = []
    process = _start(work, keys, store, row_bytes)
    try:
        _wait(lambda: (work / _FILLED).exists(), process, _FILL, work)
        _wait(lambda: _log_behind(work / "store") < _SETTLED, process, _FILL, work)
        for _ in range(rounds):
            _wait(lambda: any(out.glob("*.time")), process, _PATIENCE, work)
            os.kill(process.pid, signal.SIGKILL)  # the driver alone: what it leaves behind is its own affair
            killed = time.time_ns()
            process.wait()
            copies = work / "copies"
            if copies.exists():  # the next driver's host has none; its workers may still end a task here
                copies.rename(work / f"lost-{killed}")
            process = _start(work, keys, store, row_bytes)
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


def _log_behind(store: Path) -> int:
    """The bytes of a folder's logs behind their newest snapshots: much, while keys are being made."""
    found = 0
    for log in store.glob("shard-*/log"):
        snapshots = log.with_name("snapshots").glob("[0-9]*")
        newest = max((path.name for path in snapshots), default="")
        for path in log.glob("[0-9]*"):
            with suppress(FileNotFoundError):
                found += path.stat().st_size if path.name > newest else 0
    return found


def _first(out: Path, after: int) -> int | None:
    """The first output after a moment; a worker of the dead driver may still have written one before."""
    moments = [int(path.read_text()) for path in out.glob("*.time")]
    return min((moment for moment in moments if moment > after + _LAST_BREATH), default=None)


_LAST_BREATH = 1_500_000_000
"""Nanoseconds in which workers whose driver is dead may still end a task: no new driver is up by then."""


def _start(work: Path, keys: int, store: str, row_bytes: int | None) -> subprocess.Popen[bytes]:
    path = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.fspath(_ROOT) + (os.pathsep + path if path else "")}
    environment["MILLWHEEL_COPIES"] = os.fspath(work / "copies")
    objects = f"file://{work}/store?grace={_GRACE}"
    url = {"lmdb": os.fspath(work / "store"), "objects": objects}.get(store, store)
    with open(work / "log", "ab") as log:
        command = [sys.executable, "-m", "benchmarks.recovery", os.fspath(work), str(keys)]
        command.append(url.format(keys=keys))
        command += [str(row_bytes)] if row_bytes is not None else []
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


def _drive(work: Path, keys: int, store: str, row_bytes: int | None = None) -> None:
    """The driver that is killed."""
    with mw.start(sweeps.beating(keys, work / "out", row_bytes), store=store, progress=False) as job:
        while job.wait(0.2) is None:
            if job.status().streams.get("keys", 0) >= keys:
                (work / _FILLED).touch()


if __name__ == "__main__":
    _drive(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
