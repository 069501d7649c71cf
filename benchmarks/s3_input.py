"""A gigabyte of JSON lines from S3 and the same files from disk, in turns in one Spark.

Three ways: the files read in tasks with nothing behind; a windowed count in operators; the same count in a
computation. The last two are whole runs of `mw.run`, with LMDB and a sink on disk, and must find the right
windows. The S3 server runs on the same machine and takes its share of the same cores. Both places are in
the page cache, so that the disk is as fast as it can be.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import counted, data, results
from benchmarks.pipelines import windows
from benchmarks.reading import records_in_tasks
from benchmarks.session import session
from millwheel.model.lakehouse import below
from millwheel.objects import open_objects
from tests.servers.s3 import ENVIRONMENT, server

_RECORDS, _FILES, _TEXT = 4_000_000, 8, 180  # a gigabyte, in files of 125 MB
_QUICK_RECORDS, _QUICK_FILES = 60_000, 4
_KEYS = 1_000
_TARGET = 0.8
PLACES = ("disk", "S3")


@dataclass(frozen=True)
class _Way:
    """A way to read: the pipeline and how its windows are found; without them, the files are read only."""

    name: str
    pipeline: Callable[[str, Path], mw.Pipeline] | None = None
    windows: Callable[[Path], counted.Windows] | None = None


_WAYS = (
    _Way("reading alone"),
    _Way("windowed count, operators", windows.operators, counted.of_operators),
    _Way("windowed count, a computation", windows.pipeline, counted.of_computation),
)


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs every way, prints a table, and writes the artifacts."""
    os.environ.update(ENVIRONMENT)
    records, files = (_QUICK_RECORDS, _QUICK_FILES) if quick else (_RECORDS, _FILES)
    with results.scratch("s3_input") as work, server() as found:
        source = data.generate(work / "in", keys=_KEYS, records=records, files=files, text=_TEXT)
        found.make_bucket("bench")
        url = found.url("bench", "in")
        _upload(source.folder, url)
        with session(work) as spark:
            cases = _Comparison(spark, work, source, url).run(rounds)
            size = _bytes(source)
    result = judged(cases, source.records, size, quick=quick)
    results.save(results.name("s3_input", quick=quick), result)
    rows = [
        [name, case["disk"]["median"], case["S3"]["median"], case["of_disk"]] for name, case in cases.items()
    ]
    print(results.table(["way", "disk, MB/s", "S3, MB/s", "ratio"], rows))
    worst = min(case["of_disk"] for case in cases.values())
    verdict = "not judged" if quick else results.verdict(result["passed"])
    same = "the right windows" if result["same_windows"] else "NOT THE RIGHT WINDOWS"
    print(f"{verdict}  S3 at {worst:.2f} of disk or more, target {_TARGET:g}; {same}")
    return result


def judged(
    cases: dict[str, dict[str, Any]], records: int, size: int, *, quick: bool = False
) -> dict[str, Any]:
    """The result of the cases: it passes if all have the right windows, and S3 is near disk in each."""
    same = all(case["same_windows"] for case in cases.values())
    worst = min(case["of_disk"] for case in cases.values())
    return {
        "quick": quick,
        "records": records,
        "bytes": size,
        "cases": cases,
        "same_windows": same,
        "of_disk": worst,
        "target": _TARGET,
        "passed": same and worst >= _TARGET,
    }


class _Comparison:
    """The same input in both places, read in every way, in turns."""

    def __init__(self, spark: SparkSession, work: Path, source: data.Input, url: str) -> None:
        self._spark = spark
        self._work = work
        self._source = source
        self._folders = {"disk": os.fspath(source.folder), "S3": url}
        self._truth = counted.truth(source)
        self._megabytes = _bytes(source) / 1e6
        self._same: dict[str, bool] = {way.name: True for way in _WAYS}

    def run(self, rounds: int) -> dict[str, dict[str, Any]]:
        rates: dict[str, dict[str, list[float]]] = {
            way.name: {place: [] for place in PLACES} for way in _WAYS
        }
        for way in _WAYS:  # with a file only: it warms up
            for place in PLACES:
                self._seconds(way, place, "log-0000.jsonl")
        for number in range(rounds):
            for way in _WAYS:
                for place in PLACES if number % 2 == 0 else PLACES[::-1]:
                    seconds = self._seconds(way, place)
                    rates[way.name][place].append(self._megabytes / seconds)
                told = ", ".join(f"{place} {found[-1]:,.0f}" for place, found in rates[way.name].items())
                print(f"round {number + 1} of {rounds}, {way.name}: {told} MB/s", flush=True)
        return {name: case(found, self._same[name]) for name, found in rates.items()}

    def _seconds(self, way: _Way, place: str, names: str = "*.jsonl") -> float:
        """How long a way takes in a place; what it found is compared where all of it was read."""
        pattern = below(self._folders[place], names)
        whole = names == "*.jsonl"
        if way.pipeline is None or way.windows is None:
            return self._reading(pattern, whole)
        folder = self._work / "run"
        folder.mkdir()
        started = time.perf_counter()
        mw.run(
            way.pipeline(pattern, folder / "out"), store=folder / "store", spark=self._spark, progress=False
        )
        seconds = time.perf_counter() - started
        if whole:
            self._same[way.name] &= way.windows(folder / "out") == self._truth
        shutil.rmtree(folder)
        return seconds

    def _reading(self, pattern: str, whole: bool) -> float:
        started = time.perf_counter()
        injector = mw.injectors.Files(pattern, timestamp="time", slack=data.DISORDER)
        injector.open(follow=False)
        found = records_in_tasks(self._spark, injector)
        injector.close()
        seconds = time.perf_counter() - started
        if whole:
            self._same["reading alone"] &= found == self._source.records + 1
        return seconds


def case(rates: dict[str, list[float]], same: bool) -> dict[str, Any]:
    """What is told of a way: the rates of both places, and the median of the ratios of the rounds."""
    ratios = [s3 / disk for disk, s3 in zip(rates["disk"], rates["S3"], strict=True)]
    places = {
        place: {"rates": [round(rate, 1) for rate in found], "median": round(statistics.median(found), 1)}
        for place, found in rates.items()
    }
    return {
        **places,
        "ratios": [round(ratio, 3) for ratio in ratios],
        "of_disk": statistics.median(ratios),
        "same_windows": same,
    }


def _bytes(source: data.Input) -> int:
    return sum(path.stat().st_size for path in source.folder.iterdir())


def _upload(folder: Path, url: str) -> None:
    objects = open_objects(url)
    for path in sorted(folder.iterdir()):
        objects.put(path.name, path.read_bytes())
