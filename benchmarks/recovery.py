"""Recovery: from kill -9 of the driver to the first new output, against the size of the state.

A pipeline with many keys in state and a light load beside them is killed, the driver alone, and started
again at once, as a supervisor would. What is measured contains the start of Python, of Spark and of its
workers; that of a store with hardly any state is the part that has nothing to do with recovery.

Stores are compared where they are named. ``objects`` is a folder of objects, ``s3`` an S3 server of the
benchmark's own; with both, the working copies are lost with the driver: it is the host that is new.
``postgresql`` is a server of the benchmark's own, too; another one is given by the URL of an empty database
for each size, with ``{keys}`` in it. With bytes of a row, rows do not compress, and the load reads a hundred
of them: the first output waits for them.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks import chart, results
from benchmarks.pace import size_of
from benchmarks.pipelines import sweeps
from benchmarks.server import postgres
from tests.servers import s3

_ROOT = Path(__file__).resolve().parent.parent
_FILL = 600.0  # seconds that filling the state may take, and besides, by its size:
_KEYS_A_SECOND, _BYTES_A_SECOND = 2_000, 2_000_000  # a fraction of what two busy cores do
PATIENCE = 240.0  # and a recovery: much, as a machine may be busy
_POLL = 0.01
FILLED = "filled"
SETTLED = 64 << 20  # bytes of the log that a snapshot may be behind: as after any time of light load
_GRACE = 120  # seconds that a store of objects keeps the log: more is only room on the disk here
GOAL = 2.0
"""Times as long with the largest state as with the smallest, on object storage."""
_OBJECTS = ("objects", "s3")


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
        return _compare(stores or ["lmdb"], keys or sizes, rounds, row_bytes, quick=quick)
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
    stores: Sequence[str], sizes: Sequence[int], rounds: int, row_bytes: int | None, *, quick: bool
) -> dict[str, Any]:
    """The same sizes on several stores."""
    points: list[dict[str, Any]] = []
    result: dict[str, Any] = {"quick": quick, "row_bytes": row_bytes, "goal": GOAL, "points": points}
    label = results.name("recovery_stores", quick=quick)
    for keys in sizes:
        for store in stores:
            with results.scratch("recovery") as work:
                found = measure(work / "one", keys, rounds, store, row_bytes)
            points.append({"store": store.partition(":")[0], **found})
            result["ratios"] = ratios(points)
            results.save(label, result)
            print(f"{points[-1]['store']}, {keys:,} keys: {found['median']:.1f} s", flush=True)
    rows = [[p["store"], p["keys"], p["store_bytes"] / 1e6, p["median"], max(p["seconds"])] for p in points]
    print(results.table(["store", "keys", "store, MB", "seconds to the first new output", "longest"], rows))
    for store, ratio in result["ratios"].items():
        judged = results.verdict(ratio <= GOAL) if store in _OBJECTS and not quick else "not judged"
        print(f"{judged}  {store}: {ratio:.2f} times as long with the largest state as with the smallest")
    return result


def ratios(points: Sequence[dict[str, Any]]) -> dict[str, float]:
    """By store with several sizes: the time of the largest against that of the smallest.

    >>> ratios([{"store": "s3", "keys": 10, "median": 5.0}, {"store": "s3", "keys": 900, "median": 8.0}])
    {'s3': 1.6}
    """
    found = {}
    for store in dict.fromkeys(point["store"] for point in points):
        mine = sorted((p for p in points if p["store"] == store), key=lambda point: int(point["keys"]))
        if mine[0]["keys"] < mine[-1]["keys"]:
            found[store] = round(mine[-1]["median"] / mine[0]["median"], 2)
    return found


@dataclass(frozen=True)
class Place:
    """Where a store is: its URL, its size in bytes, and the folder of its objects if it has any."""

    url: str
    size: Callable[[], int]
    folder: Path


@contextmanager
def place(store: str, work: Path, keys: int) -> Iterator[Place]:
    """The place of a store; its server, if it needs one of its own, runs meanwhile."""
    folder = work / "store"
    if store == "lmdb":
        yield Place(os.fspath(folder), lambda: size_of(folder), folder)
    elif store == "objects":
        yield Place(f"file://{folder}?grace={_GRACE}", lambda: size_of(folder), folder)
    elif store == "s3":
        os.environ.update(s3.ENVIRONMENT)
        with s3.server() as found:
            found.make_bucket("bench")
            folder = found.folder / "data" / "bench"
            yield Place(
                f"{found.url('bench', 'state')}&grace={_GRACE}", lambda: size_of(folder), folder / "state"
            )
    elif store == "postgresql":
        with postgres() as server:
            url = server.make_database("recovery")
            yield Place(url, lambda: _database_size(url), folder)
    else:
        url = store.format(keys=keys)
        yield Place(url, lambda: _database_size(url), folder)


def _database_size(url: str) -> int:
    import psycopg  # here: other stores need no client

    with psycopg.connect(url.partition("?")[0]) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


def measure(
    work: Path, keys: int, rounds: int, store: str = "lmdb", row_bytes: int | None = None
) -> dict[str, Any]:
    """Fills the state, then kills the driver as often as asked."""
    with place(store, work, keys) as found:
        return _measure(work, keys, rounds, found, row_bytes)


def _measure(work: Path, keys: int, rounds: int, store: Place, row_bytes: int | None) -> dict[str, Any]:
    out = work / "out"
    out.mkdir(parents=True)
    seconds = []
    fill = filling(keys, row_bytes or 0)
    process = _start(work, keys, store.url, row_bytes)
    try:
        wait_until(lambda: (work / FILLED).exists(), process, fill, work)
        wait_until(lambda: log_behind(store.folder) < SETTLED, process, fill, work)
        for _ in range(rounds):
            wait_until(lambda: any(out.glob("*.time")), process, PATIENCE, work)
            os.kill(process.pid, signal.SIGKILL)  # the driver alone: what it leaves behind is its own affair
            killed = time.time_ns()
            process.wait()
            copies = work / "copies"
            if copies.exists():  # the next driver's host has none; its workers may still end a task here
                copies.rename(work / f"lost-{killed}")
            process = _start(work, keys, store.url, row_bytes)
            wait_until(lambda killed=killed: _first(out, killed) is not None, process, PATIENCE, work)
            seconds.append(((_first(out, killed) or killed) - killed) / 1e9)
            for path in out.glob("*.time"):
                path.unlink()
        size = store.size()
    finally:
        process.kill()
        process.wait()
    return {
        "keys": keys,
        "store_bytes": size,
        "seconds": [round(value, 2) for value in seconds],
        "median": round(statistics.median(seconds), 2),
    }


def filling(keys: int, row_bytes: int) -> float:
    """The seconds that filling the state may take."""
    return _FILL + keys / _KEYS_A_SECOND + keys * row_bytes / _BYTES_A_SECOND


def log_behind(store: Path) -> int:
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
    with open(work / "log", "ab") as log:
        command = [sys.executable, "-m", "benchmarks.recovery", os.fspath(work), str(keys), store]
        command += [str(row_bytes)] if row_bytes is not None else []
        return subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=log, stderr=log)


def wait_until(condition: Any, process: subprocess.Popen[bytes], limit: float, work: Path) -> None:
    """Waits for a condition; an error where the driver ends, or nothing happens within a time."""
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
                (work / FILLED).touch()


if __name__ == "__main__":
    _drive(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
