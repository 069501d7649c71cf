"""Throughput: windows counted by key, against `transformWithState`, with few keys and with many.

Both count a key's records per one-second window, exactly once and durably, from the same kind of files,
and must give the same windows. They take turns in one process and one Spark, as machines have moods.
"""

from __future__ import annotations

import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, counted, data, results
from benchmarks.peers import transform_with_state
from benchmarks.pipelines import windows
from benchmarks.session import session


@dataclass(frozen=True)
class Case:
    """A number of keys, how much each system reads, and how much faster millwheel is to be.

    The peer reads fewer records where it would take minutes: rates are compared, and the density of the
    input does not depend on its length.
    """

    keys: int
    records: int
    peer_records: int
    peer_batch: int
    target: float


CASES = (
    Case(keys=1_000, records=1_000_000, peer_records=1_000_000, peer_batch=200_000, target=5.0),
    Case(keys=100_000, records=1_000_000, peer_records=100_000, peer_batch=50_000, target=20.0),
)
QUICK_CASES = (
    Case(keys=1_000, records=80_000, peer_records=80_000, peer_batch=40_000, target=5.0),
    Case(keys=20_000, records=100_000, peer_records=20_000, peer_batch=10_000, target=20.0),
)
_FILE = 50_000  # records in an input file


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs every case, prints a table, and writes the artifacts."""
    with results.scratch("throughput") as work, session(work, transform_with_state.SETTINGS) as spark:
        name = results.name("throughput", quick=quick)
        cases: list[dict[str, Any]] = []
        result = {"quick": quick, "rounds": rounds, "cases": cases}
        for case in QUICK_CASES if quick else CASES:
            cases.append(Comparison(case, spark, work).run(rounds))
            results.save(name, result)  # a later case that fails does not cost this one
    _print(cases, quick=quick)
    chart.bars(
        results.artifact(f"{name}.png"),
        "Windowed count, records/s (median)",
        [f"{case['keys']:,} keys" for case in cases],
        {
            "millwheel": [case["millwheel"]["median"] for case in cases],
            "transformWithState": [case["transformWithState"]["median"] for case in cases],
        },
        logarithmic=True,
    )
    return result


class Comparison:
    """One case on both systems, in turns."""

    def __init__(self, case: Case, spark: SparkSession, work: Path) -> None:
        self._case = case
        self._spark = spark
        self._work = work / f"{case.keys}-keys"
        self._runs = 0
        self.short = self._generate("short", case.peer_records)
        alike = case.records == case.peer_records
        self._long = self.short if alike else self._generate("long", case.records)
        self._files_a_batch = case.peer_batch // min(_FILE, case.peer_batch)

    def _generate(self, name: str, records: int) -> data.Input:
        files = max(records // min(_FILE, self._case.peer_batch), 1)
        return data.generate(self._work / name, keys=self._case.keys, records=records, files=files)

    def run(self, rounds: int) -> dict[str, Any]:
        # The first turn warms up, and is where both read the same files and must agree.
        short, long = counted.truth(self.short), counted.truth(self._long)
        theirs, _ = self.peer(self.short)
        ours, _ = self.millwheel(self.short)
        same = ours == theirs == short
        millwheel: list[float] = []
        same_files: list[float] = []
        peer: list[float] = []
        for number in range(rounds):
            _say(f"{self._case.keys:,} keys, round {number + 1} of {rounds}")
            counts, seconds = self.millwheel(self._long)
            same = same and counts == long
            millwheel.append(self._case.records / seconds)
            if self._long is not self.short:
                counts, seconds = self.millwheel(self.short)
                same = same and counts == short
            same_files.append(self.short.records / seconds)
            counts, seconds = self.peer(self.short)
            same = same and counts == short
            peer.append(self._case.peer_records / seconds)
            _say(f"  millwheel {millwheel[-1]:,.0f} records/s, the peer {peer[-1]:,.0f}")
        ratio = statistics.median(millwheel) / statistics.median(peer)
        return {
            "keys": self._case.keys,
            "windows": len(short),
            "same_windows": same,
            "millwheel": summary(self._case.records, millwheel),
            "transformWithState": {
                "records_a_batch": self._case.peer_batch,
                **summary(self._case.peer_records, peer),
            },
            "ratio": ratio,
            "ratio_on_the_same_files": statistics.median(same_files) / statistics.median(peer),
            "target": self._case.target,
            "passed": same and ratio >= self._case.target,
        }

    def millwheel(
        self, source: data.Input, store: str | None = None, **options: Any
    ) -> tuple[counted.Windows, float]:
        """The windows that millwheel finds, with LMDB or another store, and the seconds that it takes."""
        folder = self._fresh()
        started = time.perf_counter()
        mw.run(
            windows.pipeline(source.pattern, folder / "out"),
            store=folder / "store" if store is None else store,
            spark=self._spark,
            progress=False,
            **options,
        )
        seconds = time.perf_counter() - started
        counts = counted.of_computation(folder / "out")
        shutil.rmtree(folder)
        return counts, seconds

    def peer(self, source: data.Input) -> tuple[counted.Windows, float]:
        """The same of `transformWithState`."""
        folder = self._fresh()
        seconds = transform_with_state.count_windows(self._spark, source.folder, folder, self._files_a_batch)
        counts = counted.of_spark(folder)
        shutil.rmtree(folder)
        return counts, seconds

    def _fresh(self) -> Path:
        """A new folder for every run: no run finds another one's store or checkpoint."""
        self._runs += 1
        folder = self._work / f"run-{self._runs}"
        folder.mkdir()
        return folder


def summary(records: int, rates: list[float]) -> dict[str, Any]:
    """What is told of the rates of some runs."""
    return {"records": records, "rates": [round(r) for r in rates], "median": round(statistics.median(rates))}


def _say(text: str) -> None:
    print(text, flush=True)


def _print(cases: list[dict[str, Any]], *, quick: bool) -> None:
    """A quick run is not held against the targets: its small batches cost the peer most of its rate."""
    rows = []
    for case in cases:
        for system in ("millwheel", "transformWithState"):
            part = case[system]
            rows.append(
                [
                    case["keys"],
                    system,
                    part["records"],
                    part["median"],
                    min(part["rates"]),
                    max(part["rates"]),
                ]
            )
    print(results.table(["keys", "system", "records a run", "records/s", "slowest", "fastest"], rows))
    for case in cases:
        same = "the same windows" if case["same_windows"] else "NOT THE SAME WINDOWS"
        judged = "not judged" if quick else results.verdict(case["passed"])
        print(
            f"{judged}  {case['keys']:,} keys: {case['ratio']:.1f} times the peer, "
            f"target {case['target']:.0f} times; {same} "
            f"(on the very same files {case['ratio_on_the_same_files']:.1f} times)"
        )
    print(
        "Rates are compared: where the peer would take minutes it reads fewer records a run, which favours\n"
        "the one that reads more. The start of a query is not counted for the peer; all of millwheel's is."
    )
