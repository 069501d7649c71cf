"""The field: one job on millwheel and on its peers, from the same records, on the same two cores.

Counts by key and one-second window, up to two seconds out of order, from JSON lines to JSON lines. Every
system is a process (or two) of its own, started anew for every run, and takes its turn in every round. All
are timed in the same way, from outside: a run on a short input and one on a long input, from the start of
the process to its end. The steady rate is what the difference says, (long - short) records in the time that
the long run took more; the start-up is what is left of the short run at that rate. Of several rounds it is
the median of those differences: of rates, one from a start that took some seconds less would count for many.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import chart, counted, data, field_result, results
from benchmarks.peers import environments
from benchmarks.peers.systems import SYSTEMS, Failed, System
from benchmarks.peers.systems import run as run_system


@dataclass(frozen=True)
class Load:
    """What a system reads. The slow ones read less, of the same density, so that a round takes minutes."""

    long: int
    short: int
    """0: there is no short run, and its start is not told from the rate."""
    batch: int = 0
    """Records that transformWithState takes at once; the others find their own pace."""


@dataclass(frozen=True)
class Case:
    """A number of keys, and what each system reads; those that are not named read what millwheel reads."""

    keys: int
    load: Load
    others: dict[str, Load]

    def load_of(self, system: str) -> Load:
        return self.others.get(system, self.load)


CASES = (
    Case(
        1_000,
        Load(20_000_000, 2_000_000),
        {
            # At millions a second 20 million take five seconds: their noise is that of the start.
            "millwheel, operators": Load(60_000_000, 10_000_000),
            "millwheel, Parquet": Load(60_000_000, 10_000_000),
            "Spark groupBy": Load(20_000_000, 2_000_000, 200_000),
            "transformWithState": Load(2_000_000, 400_000, 200_000),
            "transformWithState, Pandas": Load(600_000, 200_000, 200_000),
            "PyFlink": Load(400_000, 100_000),
            "PyFlink, tuned": Load(400_000, 100_000),
        },
    ),
    Case(
        100_000,
        Load(20_000_000, 2_000_000),
        {
            "Bytewax": Load(2_000_000, 200_000),
            "Spark groupBy": Load(4_000_000, 400_000, 200_000),
            "transformWithState": Load(200_000, 50_000, 50_000),
            "transformWithState, Pandas": Load(100_000, 50_000, 50_000),
            "PyFlink": Load(80_000, 20_000),
            "PyFlink, tuned": Load(200_000, 50_000),
        },
    ),
)
_SPARK = ("Spark groupBy", "transformWithState", "transformWithState, Pandas")
QUICK_CASES = (
    Case(
        1_000,
        Load(200_000, 0),
        {name: Load(20_000, 0, 10_000) for name in _SPARK}
        | {name: Load(20_000, 0) for name in ("PyFlink", "PyFlink, tuned")},
    ),
)
"""One run of each system: with its start in the rate, for whether it works and is right."""
_FILE = 50_000  # records in an input file

ONCE = ("transformWithState, Pandas", "PyFlink", "PyFlink, tuned")
"""Of several rounds they are in the first alone: a turn takes minutes, and they are far away."""


def run(*, quick: bool = False, rounds: int = 3, only: list[str] | None = None) -> dict[str, Any]:
    """Runs the systems in turns, prints a table, and writes the artifacts.

    With ``only``, the systems that are not run keep the figures of the recorded result.
    """
    systems = _chosen(only)
    old = field_result.recorded(quick=quick) if only else None
    absent: dict[str, str] = {}
    failures: list[dict[str, str]] = []
    label = results.name("field", quick=quick)
    with results.scratch("field") as work:
        cases = [CaseRun(case, work / f"{case.keys}") for case in (QUICK_CASES if quick else CASES)]
        for number in range(rounds):
            for case in cases:
                for system in systems:
                    if system.name in absent or (number and system.name in ONCE):
                        continue
                    try:
                        said = case.turn(system)
                    except environments.Unavailable as error:
                        absent[system.name] = said = f"not available: {error}"
                    except Failed as error:  # this turn's, not the others': it may do better the next time
                        said = str(error)
                        failures.append({"system": system.name, "said": said.strip().splitlines()[-1]})
                    print(
                        f"round {number + 1} of {rounds}, {case.keys:,} keys, {system.name}: {said}",
                        flush=True,
                    )
            found = [{"keys": case.keys, "systems": case.found()} for case in cases]
            new = {
                "quick": quick,
                "cases": found,
                "measured": {name: results.moment() for case in cases for name in case.turns},
                "absent": absent,
                "failures": failures,
            }
            result = field_result.merged(new, old)
            results.save(label, result)  # a later round that fails does not cost this one
    field_result.show(result)
    _draw(label, result["cases"])
    return result


def _chosen(only: list[str] | None) -> list[System]:
    names = [system.name for system in SYSTEMS]
    for name in only or ():
        if name not in names:
            sys.exit(f"the field has no system {name!r}; it has {', '.join(names)}")
    return [system for system in SYSTEMS if only is None or system.name in only]


def _draw(label: str, cases: list[dict[str, Any]]) -> None:
    names = [system.name for system in SYSTEMS if all(system.name in case["systems"] for case in cases)]
    chart.bars(
        results.artifact(f"{label}.png"),
        "Windowed count, records/s (median)",
        [f"{case['keys']:,} keys" for case in cases],
        {name: [case["systems"][name]["records_per_second"] for case in cases] for name in names},
        logarithmic=True,
    )


class CaseRun:
    """The runs of one case, and what was learnt from them."""

    def __init__(self, case: Case, work: Path) -> None:
        self.keys = case.keys
        self._case = case
        self._work = work
        self._inputs: dict[int, tuple[data.Input, counted.Windows]] = {}
        self.turns: dict[str, list[tuple[float, float]]] = {}
        self.same: dict[str, bool] = {}

    def turn(self, system: System) -> str:
        """Both runs of a system."""
        load = self._case.load_of(system.name)
        short = self._run(system, load.short, load.batch) if load.short else 0.0
        long = self._run(system, load.long, load.batch)
        self.turns.setdefault(system.name, []).append((short, long))
        rate, start = line(load, short, long)
        return f"{rate:,.0f} records/s after {start:.1f} s" + ("" if self.same[system.name] else ", WRONG")

    def _run(self, system: System, records: int, batch: int) -> float:
        source, truth = self._input(records, batch)
        counts, seconds = run_system(system, source, self._work / "run", batch)
        self.same[system.name] = self.same.get(system.name, True) and counts == truth
        return seconds

    def _input(self, records: int, batch: int) -> tuple[data.Input, counted.Windows]:
        if records not in self._inputs:
            files = max(records // min(_FILE, batch or _FILE), 1)
            source = data.generate(self._work / f"in-{records}", keys=self.keys, records=records, files=files)
            self._inputs[records] = (source, counted.truth(source))
        return self._inputs[records]

    def found(self) -> dict[str, Any]:
        """By system: the medians."""
        systems: dict[str, dict[str, Any]] = {}
        for name, turns in self.turns.items():
            load = self._case.load_of(name)
            short = statistics.median(short for short, _ in turns)
            rate, start = line(load, short, short + statistics.median(long - short for short, long in turns))
            systems[name] = {
                "records": load.long,
                "records_of_the_short_run": load.short,
                "records_per_second": round(rate),
                "rates": [round(line(load, short, long)[0]) for short, long in turns],
                "start_up_seconds": round(start, 2),
                "seconds": [[round(part, 2) for part in turn] for turn in turns],
                "same_windows": self.same[name],
                "guarantee": next(system.guarantee for system in SYSTEMS if system.name == name),
            }
        return systems


def line(load: Load, short: float, long: float) -> tuple[float, float]:
    """Records in a second, and the seconds before the first: the straight line through two runs."""
    if long <= short:  # a moment's noise was larger than what there was to measure
        return load.long / long, 0.0
    rate = (load.long - load.short) / (long - short)
    return rate, max(short - load.short / rate, 0.0)
