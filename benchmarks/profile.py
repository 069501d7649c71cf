"""Where a record's time goes: microseconds by part of the hot path, in one process, without Spark.

The windowed count runs on the same code as under Spark: a driver, a worker and a store, but no shuffle and
no second process. A timer interrupts it every millisecond; what has passed since the last time goes to the
part of the innermost function that belongs to one. Nothing is wrapped, so nothing costs more than it does.
``--flame`` draws a flame graph as well, with py-spy.
"""

from __future__ import annotations

import gc
import linecache
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from benchmarks import chart, data, results
from benchmarks.pipelines import windows
from millwheel.master.driver import Driver
from millwheel.master.intervals import shard_count
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.model.keys import TABLETS
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker.step import Worker

_INTERVAL = 0.001  # seconds between looks
_EPOCH = 250_000  # records, about what an epoch at full speed has
_TARGET = 3.0  # seconds, as `millwheel.run` has it: no step is cut short

PARTS = {
    "decode": ("injectors", "model/record.py"),
    "extract": ("worker/route.py:_keys", "worker/route.py:_key", "model/keys.py"),
    "route": ("worker/route.py", "worker/inject.py", "store/keyspace.py:tablets_of"),
    "pack": (
        "worker/route.py:_pack",
        "worker/route.py:_section",
        "worker/route.py:finish",
        "worker/envelope.py",
    ),
    "unpack": (
        "worker/inbox.py",
        "worker/envelope.py:unpack_section",
        "worker/envelope.py:unpack_columns",
    ),
    "load": (
        "store/lmdb/lmdb_snapshot.py:get_each",
        "store/lmdb/lmdb_snapshot.py:get",
        "store/lmdb/lmdb_snapshot.py:scan",
        "store/row.py:decode_row",
        "worker/context.py:load_state",
        "worker/cache.py",
    ),
    "user code": ("benchmarks/pipelines",),
    "around it": ("worker",),
    "encode": ("worker/context.py:encoded", "store/row.py", "store/keyspace.py"),
    "write": ("store", "store/lmdb", "sinks"),
    "commit": ("master",),
}
"""By part: functions of files, files, and folders, in this order of precedence. What is named nowhere, such
as a codec, belongs to whoever calls it."""

OTHER = "other"


def part_of(path: str, function: str, line: str = "") -> str | None:
    """The part that a function belongs to.

    >>> part_of("millwheel/worker/route.py", "_keys"), part_of("millwheel/worker/route.py", "send")
    ('extract', 'route')
    """
    if path.endswith("store/lmdb/lmdb_store.py") and ".commit(" in line:
        return "commit"
    folder = os.path.dirname(path)
    if not folder.endswith("benchmarks/pipelines") and "millwheel/" not in path:
        return None
    for wanted in (f"{path}:{function}", path, folder):
        for part, places in PARTS.items():
            if any(wanted.endswith(f"/{place}") for place in places):
                return part
    return None


class Sampler:
    """Looks at the main thread every millisecond of real time."""

    def __init__(self) -> None:
        self.cpu: Counter[str] = Counter()
        self.wall: Counter[str] = Counter()
        self._parts: dict[tuple[str, str], str | None] = {}
        self._last = (0.0, 0.0)

    def __enter__(self) -> Sampler:
        self._last = (time.process_time(), time.perf_counter())
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, _INTERVAL, _INTERVAL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _look(self, number: int, frame: FrameType | None) -> None:
        now = (time.process_time(), time.perf_counter())
        part = self._part(frame)
        self.cpu[part] += now[0] - self._last[0]  # type: ignore[assignment]
        self.wall[part] += now[1] - self._last[1]  # type: ignore[assignment]
        self._last = now

    def _part(self, frame: FrameType | None) -> str:
        while frame is not None:
            code = frame.f_code
            place = (code.co_filename, code.co_name)
            if place[0].endswith("store/lmdb/lmdb_store.py"):  # the one place where a line matters
                found = part_of(*place, linecache.getline(place[0], frame.f_lineno))
            else:
                if place not in self._parts:
                    self._parts[place] = part_of(*place)
                found = self._parts[place]
            if found is not None:
                return found
            frame = frame.f_back
        return OTHER


def run(
    *,
    quick: bool = False,
    keys: int | None = None,
    records: int | None = None,
    flame: bool = False,
    store_tablets: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Profiles it with few and with many keys, prints a table, and writes the artifacts.

    With several numbers of ``store_tablets`` there is a case for each of them.
    """
    cases = {}
    label = results.name("profile", quick=quick)
    count = records or (100_000 if quick else 1_000_000)
    numbers = [keys] if keys else [1_000, 20_000 if quick else 100_000]
    tablets = store_tablets or [TABLETS]
    with results.scratch("profile") as work:
        for number in numbers:
            source = data.generate(
                work / f"in-{number}", keys=number, records=count, files=max(count // 50_000, 1)
            )
            for each in tablets:
                name = f"{number:,} keys" + (f", {each:,} tablets" if len(tablets) > 1 else "")
                cases[name] = profile(source, work / f"run-{number}-{each}", each)
    result = {"quick": quick, "records": count, "cases": cases}
    results.save(label, result)
    _print(cases)
    chart.bars(
        results.artifact(f"{label}.png"),
        "Microseconds a record, by part, in one process",
        [*PARTS, OTHER],
        {name: [case["cpu"].get(part, 0.0) for part in (*PARTS, OTHER)] for name, case in cases.items()},
        digits=2,
    )
    if flame:
        for number in numbers:
            _flame(results.artifact(f"{label}-{number}.svg"), number, count)
    return result


def profile(source: data.Input, work: Path, tablets: int = TABLETS) -> dict[str, Any]:
    """Microseconds a record by part, of CPU time and of real time."""
    graph = build(windows.pipeline(source.pattern, work / "out"))
    store = LmdbStore(work / "store", shards=shard_count(2, tablets), tablets=tablets)
    driver = Driver(
        graph,
        store,
        Options(slots=2, target=_TARGET),
        clock=lambda: time.time_ns() // 1_000,
        owner="a profile",
    )
    driver.sizer.bound = _EPOCH
    driver.sizer.learn = lambda *_: None  # type: ignore[method-assign]
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    gc.disable()  # as in a worker while it has a task
    cpu, wall = time.process_time(), time.perf_counter()
    with Sampler() as sampler:
        while (plan := driver.next_plan()) is not None:
            driver.run(plan, executor)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    gc.enable()
    records = driver.report().records_in
    driver.close()
    return {
        "records": records,
        "cpu_microseconds": round(cpu / records * 1e6, 3),
        "wall_microseconds": round(wall / records * 1e6, 3),
        "cpu": {part: round(seconds / records * 1e6, 3) for part, seconds in sampler.cpu.items()},
        "wall": {part: round(seconds / records * 1e6, 3) for part, seconds in sampler.wall.items()},
    }


def _print(cases: dict[str, Any]) -> None:
    head = ["part", *(f"{name}: {kind}" for name in cases for kind in ("CPU µs", "real µs"))]
    kinds = [(case, kind) for case in cases.values() for kind in ("cpu", "wall")]
    rows = [[part, *(f"{case[kind].get(part, 0.0):.2f}" for case, kind in kinds)] for part in (*PARTS, OTHER)]
    rows.append(["all", *(f"{case[kind + '_microseconds']:.2f}" for case, kind in kinds)])
    print(results.table(head, rows))


def _flame(path: Path, keys: int, records: int) -> None:
    """A flame graph of a run of its own: py-spy and our timer would see each other."""
    spy = shutil.which("py-spy", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if spy is None:
        print("no flame graph: py-spy is not there (pip install '.[bench]')")
        return
    command = [spy, "record", "--output", os.fspath(path), "--rate", "500", "--nolineno", "--"]
    command += [sys.executable, "-m", "benchmarks.profile", str(keys), str(records)]
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"flame graph: {path}" if path.is_file() else f"no flame graph: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    with results.scratch("profile") as scratch:
        number, wanted = int(sys.argv[1]), int(sys.argv[2])
        profile(data.generate(scratch / "in", keys=number, records=wanted, files=10), scratch / "run")
