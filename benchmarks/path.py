"""What each special case of a record's path wins: the engine as it is against the plain way, in turns.

An alternative replaces one special case by the plain way, in this process, by patching: the product has no
switch for it. The windowed count of `benchmarks.profile` runs in turns as it is and with one alternative, and
the CPU time of the two is compared: the median over the rounds of each round's ratio. A special case that
wins less than five percent in every case is not worth its code: see ``docs/decisions/0015-one-path.md``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import millwheel as mw
from benchmarks import data, results
from benchmarks.pipelines.windows import Windower
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model import keys
from millwheel.model.graph import build
from millwheel.model.injector import FieldNames
from millwheel.operators import foldings
from millwheel.store.keyspace import tablets_of
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.worker import inject, key_codes, route
from millwheel.worker.step import Worker

_WORTH = 0.05  # of the CPU time: a special case that wins less in every case goes
_RATE = 20_000  # records in a second of event time
_DISORDER = 2 * mw.SECOND


@dataclass(frozen=True)
class Case:
    """An input of the windowed count, and how it is cut into epochs."""

    keys: int
    epoch: int
    ids: bool = False
    objects: bool = False
    """Whether values come as objects and not as lines of JSON."""
    in_order: bool = False
    by_function: bool = False
    windows: bool = False
    """Whether the count is the operator's, from files to JSON lines."""
    parquet: bool = False

    @property
    def records(self) -> int:
        """About a second's work, in thirty epochs or fewer."""
        return min(30 * self.epoch, 300_000 if self.windows else 100_000)

    @property
    def large(self) -> bool:
        """Whether an epoch is sent by tablet."""
        return self.epoch > 8_000

    def __str__(self) -> str:
        parts = [f"{self.keys:,} keys", f"epochs of {self.epoch:,}"]
        parts += ["IDs"] if self.ids else []
        parts += ["objects"] if self.objects else []
        parts += ["in order"] if self.in_order else []
        parts += ["key function"] if self.by_function else []
        parts += ["windows"] if self.windows else []
        parts += ["Parquet"] if self.parquet else []
        return ", ".join(parts)


CASES = [
    *(
        Case(number, epoch, ids)
        for number in (1_000, 100_000)
        for epoch in (1_000, 100_000)
        for ids in (False, True)
    ),
    *(Case(number, 100_000, objects=True) for number in (1_000, 100_000)),
    *(Case(number, 100_000, in_order=True) for number in (1_000, 100_000)),
    Case(1_000, 100_000, by_function=True),
    *(
        Case(number, 100_000, windows=True, parquet=parquet)
        for number in (1_000, 100_000)
        for parquet in (False, True)
    ),
]


class _Objects(mw.Injector):
    """Values as objects, in batches, as a table gives them."""

    def __init__(self, batch: mw.RecordBatch) -> None:
        self._batch = batch
        self.slack = _DISORDER

    def poll(self) -> Mapping[str, Any]:
        return {"one": len(self._batch.timestamps)}

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return min(end, (start or 0) + records)

    def read_batches(self, partition: str, start: Any, end: Any) -> Iterable[mw.RecordBatch]:
        part, batch = slice(start or 0, end), self._batch
        ids = None if batch.ids is None else batch.ids[part]
        yield mw.RecordBatch(batch.timestamps[part], batch.values[part], ids)

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if offset == len(self._batch.timestamps) else mw.MIN_TIME


class Job:
    """One case: its input, made once, and a run of it in this process."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self._folder = folder
        source = random.Random(1)
        times, values = [], []
        for number in range(case.records):
            times.append(10**15 + number * mw.SECOND // _RATE - source.randrange(_DISORDER))
            values.append({"query": f"query-{source.randrange(case.keys)}", "user": f"user-{number}"})
        self._injector: Callable[[], mw.Injector]
        if case.objects:
            batch = mw.RecordBatch(times, values, [value["user"] for value in values] if case.ids else None)
            self._injector = lambda: _Objects(batch)
            return
        folder.mkdir()
        lines = [
            f'{{"time": {time}, "query": "{value["query"]}", "user": "{value["user"]}"}}\n'
            for time, value in zip(times, values, strict=True)
        ]
        (folder / "log.jsonl").write_text("".join(lines))
        if case.parquet:
            data.to_parquet(folder, folder)
        pattern = f"{folder}/*.{'parquet' if case.parquet else 'jsonl'}"
        id = "user" if case.ids else None
        self._injector = lambda: mw.injectors.Files(pattern, timestamp="time", id=id, slack=_DISORDER)

    def run(self) -> float:
        """CPU time of a run, in microseconds a record."""
        case = self._case
        place = Path(tempfile.mkdtemp(dir=self._folder.parent))
        p = mw.Pipeline("path")
        queries = p.inject("queries", self._injector())
        if case.windows:
            counted = queries.key_by("query").window(mw.windows.tumbling(mw.SECOND)).count("windows")
            counted.sink(mw.sinks.JsonLines(place / "out"))
        else:
            key = (lambda record: record.value["query"]) if case.by_function else mw.by("query")
            p.add(Windower(), inputs={"queries": key}, outputs=["windows"], in_order=case.in_order)
            p.sink("windows", mw.sinks.Callback(lambda *_: None))
        graph = build(p)
        store = LmdbStore(place / "store", shards=2, sync=False)
        driver = Driver(
            graph,
            store,
            Options(slots=2, target=60.0),
            clock=lambda: time.time_ns() // 1_000,
            owner="a benchmark",
        )
        driver.sizer.bound = case.epoch
        driver.sizer.learn = lambda *_: None  # type: ignore[method-assign]
        executor = LocalExecutor(Worker(graph, driver.numbers, store))
        gc.collect()
        gc.disable()  # as in a worker while it has a task
        began = time.process_time()
        while (plan := driver.next_plan()) is not None:
            driver.run(plan, executor)
        took = time.process_time() - began
        gc.enable()
        assert driver.report().records_in == case.records
        driver.close()
        shutil.rmtree(store.path.parent)
        return took / case.records * 1e6


def _without_json(self: Any, source: Any, item: Any, batch: mw.RecordBatch, router: Any) -> None:
    plain = mw.RecordBatch(batch.timestamps, batch.objects(), batch.ids, batch.keys)
    return _send(self, source, item, plain, router)


def _places_of_each(keys: list[Any], table: Sequence[int], nobody: int) -> list[int]:
    return [table[tablet] for tablet in tablets_of(keys, len(table))]


def _by_part(batch: mw.RecordBatch) -> list[tuple[mw.RecordBatch, None]]:
    positions: list[list[int]] = [[] for _ in range(keys.PARTS + 1)]
    places = route._places(batch.key_column(), range(keys.PARTS), keys.PARTS)
    for position, place in enumerate(places):
        positions[place].append(position)
    return [(batch.take(mine), None) for mine in positions[:-1]]


def _without_columns(graph: Any, stream: str) -> FieldNames | None:
    names = _needed_fields(graph, stream)
    if names is None:
        return None
    return FieldNames([name for name in names if name not in names.optional], names.optional)


def _cannot_copy(*_: Any) -> int:
    raise OSError("not by the kernel")


_needed_fields = inject.needed_fields
_send = inject.Injection._send
_NEVER = 10**12


@dataclass(frozen=True)
class Alternative:
    """A plain way, and the cases in which the special one is taken."""

    patches: Callable[[], list[tuple[Any, str, Any]]]
    concerns: Callable[[Case], bool] = lambda case: True

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """While the plain way is taken."""
        with contextlib.ExitStack() as stack:
            for owner, name, plain in self.patches():
                stack.enter_context(mock.patch.object(owner, name, plain))
            yield


def _few(case: Case) -> bool:
    return case.large and case.keys == 1_000


ALTERNATIVES = {
    "nothing": Alternative(list),
    "no key-grouped sections": Alternative(lambda: [(route, "OFTEN", _NEVER)], _few),
    "no NumPy": Alternative(lambda: [(route, "by_part", _by_part)], lambda case: case.large),
    "no sections by tablet": Alternative(lambda: [(route, "MANY", _NEVER)], lambda case: case.large),
    "tablets of each record": Alternative(lambda: [(route, "_places", _places_of_each)]),
    "no reading of fields": Alternative(
        lambda: [(inject, "needed_fields", lambda graph, stream: None)],
        lambda case: not case.objects and not case.by_function,
    ),
    "no keys by column": Alternative(
        lambda: [(keys.By, "column", lambda self, values: None)], lambda case: case.objects
    ),
    "no undecoded JSON": Alternative(
        lambda: [(inject.Injection, "_send", _without_json)],
        lambda case: not case.objects and not case.windows,
    ),
    "windows by key": Alternative(lambda: [(foldings, "BY_COLUMNS", False)], lambda case: case.windows),
    "files not as columns": Alternative(
        lambda: [(inject, "needed_fields", _without_columns)], lambda case: case.windows
    ),
    "keys by a dict": Alternative(
        lambda: [(key_codes, "_places", lambda *_: None)], lambda case: case.windows
    ),
    "values of windows": Alternative(
        lambda: [(mw.sinks.JsonLines, "_write_windows", lambda *_: False)], lambda case: case.windows
    ),
    "staged files through memory": Alternative(
        lambda: [(os, "copy_file_range", _cannot_copy)], lambda case: case.windows
    ),
}


def run(
    *, quick: bool = False, rounds: int = 7, only: list[str] | None = None, case: list[str] | None = None
) -> dict[str, Any]:
    """Measures each alternative in each case, prints a table, and writes the artifacts."""
    table: dict[str, dict[str, float]] = {}
    wanted = {name: ALTERNATIVES[name] for name in only or ALTERNATIVES}
    memory = "/dev/shm" if Path("/dev/shm").exists() else None
    folder = Path(tempfile.mkdtemp(prefix="millwheel-path-", dir=memory))
    cases = [one for one in CASES if all(part in str(one) for part in case or ())]
    try:
        for number, one in enumerate(cases[:1] if quick else cases):
            job = Job(one, folder / str(number))
            mine = {name: way for name, way in wanted.items() if way.concerns(one)}
            table[str(one)] = _ratios(job, mine, 1 if quick else rounds)
            text = ", ".join(f"{name} {found:.3f}" for name, found in table[str(one)].items())
            print(f"{one}: {text}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {"quick": quick, "rounds": rounds, "worth": _WORTH, "cases": table}
    results.save(results.name("path", quick=quick), result)
    _print(table)
    return result


def _ratios(job: Job, alternatives: dict[str, Alternative], rounds: int) -> dict[str, float]:
    """By alternative: its CPU time, as a multiple of the engine's as it is. And the latter."""
    job.run()  # warms up
    found: dict[str, list[float]] = {name: [] for name in alternatives}
    base = [job.run()]
    for _ in range(rounds):
        for name, alternative in alternatives.items():
            with alternative.applied():
                plain = job.run()
            base.append(job.run())
            found[name].append(plain / ((base[-2] + base[-1]) / 2))
    medians = {name: statistics.median(ratios) for name, ratios in found.items()}
    return {"microseconds": statistics.median(base), **medians}


def _print(table: dict[str, dict[str, float]]) -> None:
    names = dict.fromkeys(name for found in table.values() for name in found)
    rows = [
        [name, *(f"{found[name]:.2f}" if name in found else "" for found in table.values())] for name in names
    ]
    print(results.table(["", *map(str, range(1, len(table) + 1))], rows))
    for number, name in enumerate(table, start=1):
        print(f"{number}: {name}")


if __name__ == "__main__":
    run()
