"""A lost worker: from its kill -9 to the first new output of a slot that it had, against the state's size.

A standalone cluster of four workers on this machine, each with a core, and with a folder of its own for its
disk; the state is on object storage. A worker is killed with its executor, and its folder is removed. Three
workers go on; a slot that has moved finds nothing on the disk there. Then a new worker takes the place of the
lost one, with an empty disk, until the next one is lost.

Rows do not compress, and a light load reads a hundred of them. What is measured contains that Spark finds the
executor lost and starts its tasks again; the smallest state shows how much that is.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks import results
from benchmarks.pipelines.sweeps import Holds, Make
from benchmarks.recovery import (
    FILLED,
    GOAL,
    PATIENCE,
    SETTLED,
    Place,
    filling,
    log_behind,
    place,
    ratios,
    wait_until,
)
from millwheel.spark.session import local_session
from tests.servers.cluster import Standalone, driver_environment, standalone
from tests.servers.s3 import ENVIRONMENT

WORKERS = 4
ROW_BYTES = 5_000
_ROOT = Path(__file__).resolve().parent.parent
_TARGET = 0.5  # seconds of an epoch
_DISK = "MILLWHEEL_COPIES"
"""In the environment of a worker and all below it: the folder that stands for its disk."""


def run(
    *, quick: bool = False, rounds: int = 3, store: str = "objects", keys: Sequence[int] | None = None
) -> dict[str, Any]:
    """Runs every size, prints a table, and writes the artifact."""
    sizes = keys or ((200, 2_000) if quick else (2_000, 50_000, 200_000))
    rounds = min(rounds, 1) if quick else rounds
    label = results.name("lost_worker", quick=quick)
    points: list[dict[str, Any]] = []
    result: dict[str, Any] = {"quick": quick, "store": store, "goal": GOAL, "points": points}
    for size in sizes:
        with results.scratch("lost-worker") as work:
            points.append({"store": store, **measure(work / "one", size, rounds, store)})
        result["ratio"] = ratios(points).get(store, 1.0)
        results.save(label, result)
        print(f"{size:,} keys: {points[-1]['median']:.1f} s", flush=True)
    rows = [[p["keys"], p["store_bytes"] / 1e6, p["median"], max(p["seconds"])] for p in points]
    print(results.table(["keys", "store, MB", "seconds to a moved slot's first output", "longest"], rows))
    judged = "not judged" if quick else results.verdict(result["ratio"] <= GOAL)
    print(
        f"{judged}  {result['ratio']:.2f} times as long with the largest state as with the smallest, goal at "
        f"most {GOAL:.0f}"
    )
    return result


def measure(work: Path, keys: int, rounds: int, store: str) -> dict[str, Any]:
    """Fills the state, then loses a worker as often as asked."""
    with place(store, work, keys) as found, standalone(workers=WORKERS) as cluster:
        (work / "out").mkdir(parents=True)
        process = _start(work, keys, found, cluster)
        try:
            seconds = list(_losses(work, keys, rounds, found, cluster, process))
            size = found.size()
        finally:
            process.kill()
            process.wait()
    return {
        "keys": keys,
        "state_bytes": keys * ROW_BYTES,
        "store_bytes": size,
        "seconds": seconds,
        "median": round(statistics.median(seconds), 2),
    }


def _losses(
    work: Path, keys: int, rounds: int, store: Place, cluster: Standalone, process: subprocess.Popen[bytes]
) -> Iterator[float]:
    """The seconds of each loss."""
    out, fill = work / "out", filling(keys, ROW_BYTES)
    wait_until(lambda: (work / FILLED).exists(), process, fill, work)
    wait_until(lambda: log_behind(store.folder) < SETTLED, process, fill, work)
    for number in range(rounds):
        for path in out.glob("*.time"):
            path.unlink()
        began = time.time_ns()
        wait_until(lambda began=began: len(_disks(out, began)) == WORKERS, process, PATIENCE, work)
        before, disks = set(out.glob("*.time")), _disks(out, began)
        killed = time.time_ns()
        disk = cluster.kill_worker()
        shutil.rmtree(disk, ignore_errors=True)
        moved = disks[os.fspath(disk)]
        wait_until(lambda b=before, m=moved: _first(out, b, m) is not None, process, PATIENCE, work)
        yield round(((_first(out, before, moved) or killed) - killed) / 1e9, 2)
        if number + 1 < rounds:
            cluster.start_worker()


def _disks(out: Path, after: int) -> dict[str, set[int]]:
    """The slots of each worker, named by its disk: those whose last output it wrote, after a moment."""
    last: dict[int, tuple[int, str]] = {}
    for path in out.glob("*.time"):
        moment, disk = path.read_text().split(" ", 1)
        slot = int(path.stem.partition("-")[2])
        if int(moment) > after:
            last[slot] = max(last.get(slot, (0, "")), (int(moment), disk))
    found: dict[str, set[int]] = {}
    for slot, (_, disk) in last.items():
        found.setdefault(disk, set()).add(slot)
    return found


def _first(out: Path, before: set[Path], slots: set[int]) -> int | None:
    """When a slot first wrote the output of an epoch of which there was none."""
    new = [path for path in set(out.glob("*.time")) - before if int(path.stem.partition("-")[2]) in slots]
    return min((int(path.read_text().split()[0]) for path in new), default=None)


class Located(mw.Sink):
    """Writes when records came, and to which worker, in a file that is named by epoch and slot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        if records:
            name = f"{epoch}-{shard}"
            staged = self._folder / f".{name}"
            staged.write_text(f"{time.time_ns()} {os.environ[_DISK]}")
            staged.rename(self._folder / f"{name}.time")


def pipeline(keys: int, out: Path) -> mw.Pipeline:
    """Keys with state, made once, and a light load on a hundred of them that goes on for ever."""
    p = mw.Pipeline("lost worker")
    p.inject("keys", mw.injectors.Generator(Make(keys), count=keys, partitions=WORKERS))
    p.inject("ticks", mw.injectors.Generator(Make(100), rate=500.0))
    p.add(Holds(ROW_BYTES), inputs={"keys": mw.by_key, "ticks": mw.by_key}, outputs=["beats"])
    p.sink("beats", Located(out))
    return p


def _start(work: Path, keys: int, store: Place, cluster: Standalone) -> subprocess.Popen[bytes]:
    path = os.environ.get("PYTHONPATH")
    python_path = os.fspath(_ROOT) + (os.pathsep + path if path else "")
    settings: Mapping[str, str] = {"PYTHONPATH": python_path, **ENVIRONMENT}
    executors = {f"spark.executorEnv.{name}": value for name, value in settings.items()}
    environment = {
        **driver_environment(Path(sys.executable), executors),
        "PYTHONPATH": python_path,
        _DISK: os.fspath(work / "copies-of-the-driver"),
    }
    with open(work / "log", "ab") as log:
        command = [sys.executable, "-m", "benchmarks.lost_worker", os.fspath(work), str(keys), store.url]
        return subprocess.Popen(
            [*command, cluster.master], cwd=_ROOT, env=environment, stdout=log, stderr=log
        )


def _drive(work: Path, keys: int, store: str, master: str) -> None:
    """The driver, which lives on."""
    local_session(master)
    made = pipeline(keys, work / "out")
    options: dict[str, Any] = {"slots": WORKERS, "compact_below": 0, "target": _TARGET, "progress": False}
    with mw.start(made, store=store, **options) as job:
        while job.wait(0.2) is None:
            if job.status().streams.get("keys", 0) >= keys:
                (work / FILLED).touch()


if __name__ == "__main__":
    _drive(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
