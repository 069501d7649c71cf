"""Takeover: from kill -9 of a leader to the first output of its standby, on LMDB and on PostgreSQL.

Two drivers with ``standby=True`` run one pipeline. The leader alone is killed; the other one has Spark and
its Python workers running. Another driver is started and is the next standby, and so on in turns. An output
names the driver whose worker wrote it: what a worker of the dead leader still writes does not count.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks import results
from benchmarks.pipelines.sweeps import Beat, Keeps, Make
from benchmarks.server import postgres
from millwheel.store.open import open_to_read
from millwheel.watch.view import View, look

GOAL = 2.0
"""Seconds, with little state."""
_ROOT = Path(__file__).resolve().parent.parent
_DRIVER = "TAKEOVER_DRIVER"  # in the environment of a driver, its JVM and its Python workers: its number
_PATIENCE = 240.0  # seconds: much, as a machine may be busy
_POLL = 0.01
_LOOK = 0.25  # between reads of the store from outside, which are not to compete with what is measured


def run(*, quick: bool = False, rounds: int = 5) -> dict[str, Any]:
    """Kills leaders on each store, prints a table, and writes the artifact."""
    rounds = min(rounds, 2) if quick else rounds
    sizes = (1_000,) if quick else (1_000, 1_000_000)
    points: list[dict[str, Any]] = []
    label = results.name("takeover", quick=quick)
    result: dict[str, Any] = {"quick": quick, "goal": GOAL, "points": points}
    with results.scratch("takeover") as work, ExitStack() as stack:
        server = stack.enter_context(postgres())
        for keys in sizes:
            places = {
                "LMDB": os.fspath(work / f"lmdb-{keys}"),
                "PostgreSQL": f"{server.url()}?schema=keys_{keys}",
            }
            for name, store in places.items():
                seconds = measure(work / f"{name}-{keys}", store, keys, rounds)
                median = round(statistics.median(seconds), 2)
                points.append({"store": name, "keys": keys, "seconds": seconds, "median": median})
                print(f"{name}, {keys:,} keys: {median} s", flush=True)
                results.save(label, result)
    rows = [[p["store"], p["keys"], p["median"], max(p["seconds"])] for p in points]
    print(results.table(["store", "keys", "seconds to the standby's first output", "longest"], rows))
    for point in points:
        if point["keys"] == sizes[0]:
            print(
                f"{results.verdict(point['median'] <= GOAL)}  {point['store']}: {point['median']} s, "
                f"goal at most {GOAL:.0f}"
            )
    return result


def measure(work: Path, store: str, keys: int, rounds: int) -> list[float]:
    """The seconds of each takeover."""
    out = work / "out"
    out.mkdir(parents=True)
    drivers = {number: _start(work, store, keys, number) for number in range(2)}
    seconds = []
    try:
        for number in range(2, 2 + rounds):
            _wait(lambda: _ready(store, keys), drivers.values(), work)
            leader = _leader(store, drivers)
            [standby] = drivers.keys() - {leader}
            os.kill(drivers[leader].pid, signal.SIGKILL)  # the driver alone, as the kernel might
            killed = time.time_ns()
            drivers.pop(leader).wait()
            _wait(partial(_has_output, out, standby), drivers.values(), work)
            seconds.append(round(((_first(out, standby) or killed) - killed) / 1e9, 2))
            drivers[number] = _start(work, store, keys, number)
    finally:
        for process in drivers.values():
            process.kill()
            process.wait()
    return seconds


def _ready(store: str, keys: int) -> bool:
    """Whether the state is filled, and there is a standby."""
    time.sleep(_LOOK)
    view = _view(store)
    return view is not None and bool(view.standbys) and view.records_in > keys


def _leader(store: str, drivers: dict[int, subprocess.Popen[bytes]]) -> int:
    view = _view(store)
    assert view is not None
    [found] = [
        number for number, process in drivers.items() if view.owner.startswith(f"process {process.pid} ")
    ]
    return found


def _view(store: str) -> View | None:
    try:
        opened = open_to_read(store)
    except mw.MillWheelError:
        return None  # it is being made
    try:
        return look(opened, time.time_ns() // 1_000)
    except mw.MillWheelError:
        return None
    finally:
        opened.close()


def _has_output(out: Path, driver: int) -> bool:
    return _first(out, driver) is not None


def _first(out: Path, driver: int) -> int | None:
    """When the first output of a driver was written, in nanoseconds since 1970."""
    moments = [int(path.read_text()) for path in out.glob(f"{driver}-*.time")]
    return min(moments, default=None)


def _start(work: Path, store: str, keys: int, number: int) -> subprocess.Popen[bytes]:
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.fspath(_ROOT) + (os.pathsep + path if path else ""),
        _DRIVER: str(number),
        "SPARK_LOCAL_DIRS": os.fspath(work),
    }
    with open(work / "log", "ab") as log:
        command = [sys.executable, "-m", "benchmarks.takeover", os.fspath(work), store, str(keys)]
        return subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=log, stderr=log)


def _wait(condition: Callable[[], bool], processes: Collection[subprocess.Popen[bytes]], work: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        for process in processes:
            if process.poll() is not None:
                said = (work / "log").read_text(errors="replace")[-2_000:]
                raise RuntimeError(f"a driver ended with {process.returncode}: {said}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {_PATIENCE:.0f} seconds")
        time.sleep(_POLL)


class Named(mw.Sink):
    """Writes when records came, in a file that is named by the driver whose worker this is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        if records:
            name = f"{os.environ[_DRIVER]}-{epoch}-{shard}"
            staged = self._folder / f".{name}"
            staged.write_text(str(time.time_ns()))
            staged.rename(self._folder / f"{name}.time")


def pipeline(keys: int, out: Path) -> mw.Pipeline:
    """Keys with state, made once, and a light load beside them that goes on for ever."""
    p = mw.Pipeline("takeover")
    p.inject("keys", mw.injectors.Generator(Make(keys), count=keys, partitions=2))
    p.inject("ticks", mw.injectors.Generator(Make(100), rate=500.0))
    p.add(Keeps(size=100), name="Keeps", inputs={"keys": mw.by_key})
    p.add(Beat(), inputs={"ticks": mw.by_key}, outputs=["beats"])
    p.sink("beats", Named(out))
    return p


def _drive(work: Path, store: str, keys: int) -> None:
    """A driver: the leader, or a standby that is one later."""
    with mw.start(pipeline(keys, work / "out"), store=store, standby=True, progress=False) as job:
        job.wait()


if __name__ == "__main__":
    _drive(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
