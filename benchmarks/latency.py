"""Latency: from an external writer, through one stage with state, re-keyed, to a durable output.

The writer sends 1,000 records in a second, in small files. The stage keys them by query, counts, and
emits each record with its number among its key's. A record arrives when its output is on the disk; on
PyFlink, with its own settings, when it is at the sink. millwheel has every guarantee on: records carry IDs.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results, writer
from benchmarks.peers import environments, followers, transform_with_state
from benchmarks.peers.followers import Start
from benchmarks.pipelines import numbers
from benchmarks.session import session

RATE = 1_000
_PRIMING = (
    10  # records sent one by one first, each when the last has arrived: a system starts before it is timed
)
_WARM_UP = 5.0  # seconds at the beginning of a turn whose records are not counted
_PATIENCE = 60.0  # seconds that the last records may take
TARGETS = {"transformWithState": 1 / 3, "PyFlink": 1.0}
"""The most that millwheel's median may be of the other's."""
_PERCENTILES = (50, 95, 99)

Latencies = dict[int, float]
"""By record number: seconds from the writer to the output."""


def read_stamped(folder: Path) -> Latencies:
    """What `numbers.write_stamped` wrote, or PyFlink's last operator."""
    latencies: Latencies = {}
    for path in folder.glob("*.stamps"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                number, sent, arrived = (int(part) for part in line.split())
                latencies[number] = (arrived - sent) / 1e6
    for path in folder.glob("*.time"):
        arrived = int(path.read_text())
        for number, sent in json.loads(path.with_suffix(".data").read_text()):
            latencies[number] = (arrived - sent) / 1e6
    return latencies


def run(*, quick: bool = False, rounds: int = 2) -> dict[str, Any]:
    """Runs both systems in turns, then millwheel under load; prints tables, and writes the artifacts."""
    from benchmarks import curve  # which takes its turns from here

    seconds = 3.0 if quick else 25.0
    found: dict[str, list[list[float]]] = {}
    absent: dict[str, str] = {}
    label = results.name("latency", quick=quick)
    result: dict[str, Any] = {"quick": quick, "records_per_second": RATE, "seconds": seconds}

    def keep(curves: list[curve.Point], missing: dict[str, str]) -> None:
        """Saves what there is: a later system may fail, or the machine."""
        result.update(_compared(found), absent={**absent, **missing}, complete=False)
        result.update(curve=curves, curve_goals=curve.goals(curves))
        results.save(label, result)

    with results.scratch("latency") as work, session(work, transform_with_state.SETTINGS) as spark:
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            for name, start in SYSTEMS.items():
                try:
                    latencies = turn(spark, work / f"{name}-{number}", start, seconds)
                except environments.Unavailable as error:
                    absent[name] = str(error)
                except Exception as error:  # the others go on
                    absent[f"{name}, round {number + 1}"] = str(error)[: curve.MOST_TEXT]
                else:
                    found.setdefault(name, []).append(latencies)
                keep([], {})
        curve.measure(spark, work, quick=quick, keep=keep)
    result["complete"] = True
    results.save(label, result)
    _print(result)
    curve.show(result["curve"], result["curve_goals"])
    chart.bars(
        results.artifact(f"{label}.png"),
        f"Latency of a record at {RATE:,} records/s, milliseconds",
        [f"p{percent}" for percent in _PERCENTILES],
        {name: [part[f"p{percent}"] for percent in _PERCENTILES] for name, part in result["systems"].items()},
    )
    return result


def _compared(found: dict[str, list[list[float]]]) -> dict[str, Any]:
    """The systems that were measured, and millwheel against those with a target."""
    systems = {name: summary(turns) for name, turns in found.items()}
    ratios = {}
    if "millwheel" in systems:
        own = systems["millwheel"]["p50"]
        ratios = {name: own / part["p50"] for name, part in systems.items() if name in TARGETS}
    return {
        "systems": systems,
        "ratios_of_medians": ratios,
        "targets": TARGETS,
        "passed": {name: ratio <= TARGETS[name] for name, ratio in ratios.items()},
    }


@contextmanager
def _millwheel(spark: SparkSession, source: Path, out: Path, work: Path) -> Iterator[Callable[[], None]]:
    with mw.start(numbers.pipeline(source, out), store=work / "store", spark=spark, progress=False) as job:
        yield lambda: _nothing(job.status())


SYSTEMS: dict[str, Start] = {
    "millwheel": _millwheel,
    "transformWithState": followers.transform(),
    "PyFlink": followers.flink("process"),
}


def _nothing(_: object) -> None:
    """A status that was asked for only to learn of an error."""


def turn(
    spark: SparkSession,
    work: Path,
    start: Start,
    seconds: float,
    *,
    rate: int = RATE,
    target: writer.Target | None = None,
) -> list[float]:
    """One system on a new writer's records: the latencies after the warm-up, in milliseconds."""
    folder, out = work / "in", work / "out"
    folder.mkdir(parents=True)
    out.mkdir()
    source = folder if target is None else target
    warm_up = min(_WARM_UP, seconds / 2)  # of a quick turn, less
    total = int((warm_up + seconds) * rate)
    with start(spark, folder, out, work) as check:
        for number in range(1, _PRIMING + 1):
            writer.send(source, f"prime-{number}", [-number], random.Random(number))
            _wait(out, number, check, pause=0.05)
        command = [
            sys.executable,
            "-m",
            "benchmarks.writer",
            os.fspath(source),
            str(rate),
            str(warm_up + seconds),
        ]
        process = subprocess.Popen(command, cwd=Path(__file__).resolve().parent.parent)
        try:
            # Reading the results is not to compete with what is measured: seldom.
            latencies = _wait(out, _PRIMING + total, check, pause=1.0, limit=warm_up + seconds + _PATIENCE)
        finally:
            process.kill()
            process.wait()
    begin = int(warm_up * rate)
    return [latency * 1e3 for number, latency in latencies.items() if number >= begin]


def _wait(
    out: Path, records: int, check: Callable[[], None], *, pause: float, limit: float = _PATIENCE
) -> Latencies:
    """The latencies, once so many records have arrived."""
    deadline = time.monotonic() + limit
    while len(latencies := read_stamped(out)) < records:
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{len(latencies):,} of {records:,} records arrived within {limit:.0f} seconds"
            )
        time.sleep(pause)
    return latencies


def summary(turns: list[list[float]]) -> dict[str, Any]:
    everything = sorted(latency for turn in turns for latency in turn)
    return {
        "records": len(everything),
        **{f"p{percent}": round(percentile(everything, percent), 1) for percent in _PERCENTILES},
        "medians_by_turn": [round(percentile(sorted(turn), 50), 1) for turn in turns],
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Of sorted values: the smallest that ``percent`` of them do not exceed."""
    return values[max(math.ceil(len(values) * percent / 100) - 1, 0)]


def _print(result: dict[str, Any]) -> None:
    rows = [
        [name, part["records"], *(part[f"p{percent}"] for percent in _PERCENTILES)]
        for name, part in result["systems"].items()
    ]
    print(results.table(["system", "records", *(f"p{percent} ms" for percent in _PERCENTILES)], rows))
    for name, ratio in result["ratios_of_medians"].items():
        print(
            f"{results.verdict(result['passed'][name])}  millwheel's median is {ratio:.2f} of {name}'s, "
            f"target at most {TARGETS[name]:.2f}"
        )
    for name, reason in result["absent"].items():
        print(f"{name}: not available: {reason}")
