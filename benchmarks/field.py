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
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import chart, data, results
from benchmarks.peers import environments
from benchmarks.peers.systems import SYSTEMS, Failed, System
from benchmarks.peers.systems import run as run_system


@dataclass(frozen=True)
class Load:
    """What a system reads. The slow ones read less, of the same density, so that a round takes minutes."""

    long: int
    short: int
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
        Load(2_000_000, 200_000),
        {
            "Spark groupBy": Load(2_000_000, 400_000, 200_000),
            "transformWithState": Load(2_000_000, 400_000, 200_000),
            "transformWithState, Pandas": Load(600_000, 200_000, 200_000),
            "PyFlink": Load(400_000, 100_000),
            "PyFlink, tuned": Load(400_000, 100_000),
        },
    ),
    Case(
        100_000,
        Load(2_000_000, 200_000),
        {
            "Spark groupBy": Load(2_000_000, 400_000, 200_000),
            "transformWithState": Load(200_000, 50_000, 50_000),
            "transformWithState, Pandas": Load(100_000, 50_000, 50_000),
            "PyFlink": Load(80_000, 20_000),
            "PyFlink, tuned": Load(200_000, 50_000),
        },
    ),
)
_SPARK = ("Spark groupBy", "transformWithState", "transformWithState, Pandas")
_SMALL = {name: Load(20_000, 10_000, 10_000) for name in _SPARK}
_SMALL |= {name: Load(20_000, 10_000) for name in ("PyFlink", "PyFlink, tuned")}
QUICK_CASES = (
    Case(1_000, Load(200_000, 50_000), _SMALL),
    Case(20_000, Load(200_000, 50_000), _SMALL),
)
_FILE = 50_000  # records in an input file

GOALS = {
    "transformWithState": (5.0, 20.0),
    "transformWithState, Pandas": (5.0, 20.0),
    "plain loop": (0.5, 0.5),
}
"""How many times the other's rate, with few and with many keys; 1 where nothing is named."""
OPERATORS = "millwheel, operators"
OPERATOR_GOALS = {"plain loop": (1.5, 1.0), "Spark groupBy": (1.0, 1.0)}
"""The same of the job in operators, whose windows are kept as columns."""
ONCE = ("transformWithState, Pandas", "PyFlink", "PyFlink, tuned")
"""Of several rounds they are in the first alone: a turn takes minutes, and they are far away."""
UNJUDGED = ("plain loop, by window", OPERATORS, "Spark groupBy")
"""Other programs, not other systems: how fast this one job can be; a computation by hand is none of them."""


def run(*, quick: bool = False, rounds: int = 3, only: list[str] | None = None) -> dict[str, Any]:
    """Runs every system in turns, prints a table, and writes the artifacts."""
    systems = [system for system in SYSTEMS if only is None or system.name in only]
    absent: dict[str, str] = {}
    failures: list[str] = []
    label = results.name("field", quick=quick)
    with results.scratch("field") as work:
        cases = [_Case(case, work / f"{case.keys}") for case in (QUICK_CASES if quick else CASES)]
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
                        failures.append(str(error))
                        said = failures[-1]
                    print(
                        f"round {number + 1} of {rounds}, {case.keys:,} keys, {system.name}: {said}",
                        flush=True,
                    )
            found = [case.found(quick=quick, place=place) for place, case in enumerate(cases)]
            result = {
                "quick": quick,
                "rounds": number + 1,
                "cases": found,
                "absent": absent,
                "failures": failures,
            }
            results.save(label, result)  # a later round that fails does not cost this one
    _print(result)
    names = [
        name for name in (system.name for system in systems) if all(name in case["systems"] for case in found)
    ]
    chart.bars(
        results.artifact(f"{label}.png"),
        "Windowed count, records/s (median)",
        [f"{case['keys']:,} keys" for case in found],
        {name: [case["systems"][name]["records_per_second"] for case in found] for name in names},
        logarithmic=True,
        width=12,
    )
    return result


class _Case:
    """The runs of one case, and what was learnt from them."""

    def __init__(self, case: Case, work: Path) -> None:
        self.keys = case.keys
        self._case = case
        self._work = work
        self._inputs: dict[int, tuple[data.Input, Counter[data.Window]]] = {}
        self._turns: dict[str, list[tuple[float, float]]] = {}
        self._same: dict[str, bool] = {}

    def turn(self, system: System) -> str:
        """Both runs of a system."""
        load = self._case.load_of(system.name)
        short, long = (self._run(system, records, load.batch) for records in (load.short, load.long))
        self._turns.setdefault(system.name, []).append((short, long))
        rate, start = line(load, short, long)
        return f"{rate:,.0f} records/s after {start:.1f} s" + ("" if self._same[system.name] else ", WRONG")

    def _run(self, system: System, records: int, batch: int) -> float:
        source, truth = self._input(records, batch)
        counts, seconds = run_system(system, source, self._work / "run", batch)
        self._same[system.name] = self._same.get(system.name, True) and counts == truth
        return seconds

    def _input(self, records: int, batch: int) -> tuple[data.Input, Counter[data.Window]]:
        if records not in self._inputs:
            files = max(records // min(_FILE, batch or _FILE), 1)
            source = data.generate(self._work / f"in-{records}", keys=self.keys, records=records, files=files)
            self._inputs[records] = (source, source.truth())
        return self._inputs[records]

    def found(self, *, quick: bool, place: int) -> dict[str, Any]:
        """The medians, and how millwheel stands to each of the others."""
        systems: dict[str, dict[str, Any]] = {}
        for name, turns in self._turns.items():
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
                "same_windows": self._same[name],
                "guarantee": next(system.guarantee for system in SYSTEMS if system.name == name),
            }
        own = systems.get("millwheel", {}).get("records_per_second")
        for name, part in systems.items():
            if own is None or name == "millwheel":
                continue
            goal = None if name in UNJUDGED else GOALS.get(name, (1.0, 1.0))[place]
            part["millwheel_is"] = round(own / part["records_per_second"], 2)
            part["goal"] = goal
            part["passed"] = None if quick or goal is None else part["millwheel_is"] >= goal
        operators = systems.get(OPERATORS, {}).get("records_per_second")
        for name, goals in OPERATOR_GOALS.items():
            if operators is not None and name in systems:
                ratio = round(operators / systems[name]["records_per_second"], 2)
                passed = None if quick else ratio >= goals[place]
                systems[name]["operators"] = {"are": ratio, "goal": goals[place], "passed": passed}
        return {"keys": self.keys, "systems": systems}


def line(load: Load, short: float, long: float) -> tuple[float, float]:
    """Records in a second, and the seconds before the first: the straight line through two runs."""
    if long <= short:  # a moment's noise was larger than what there was to measure
        return load.long / long, 0.0
    rate = (load.long - load.short) / (long - short)
    return rate, max(short - load.short / rate, 0.0)


def _print(result: dict[str, Any]) -> None:
    rows = []
    for case in result["cases"]:
        for name, part in case["systems"].items():
            rows.append(
                [
                    f"{case['keys']:,}",
                    name,
                    part["records"],
                    part["records_per_second"],
                    part["start_up_seconds"],
                    f"{part['millwheel_is']:.2f}" if "millwheel_is" in part else "",
                    "yes" if part["same_windows"] else "NO",
                ]
            )
    head = ["keys", "system", "records", "records/s", "start-up s", "millwheel is", "right result"]
    print(results.table(head, rows))
    for name, reason in result["absent"].items():
        print(f"{name}: {reason}")
    if result["failures"]:
        print(f"{len(result['failures'])} turns failed; they are in the data")
    for case in result["cases"]:
        for name, part in case["systems"].items():
            found = part.get("operators")
            if found is not None:
                told = "" if found["passed"] is None else f"{results.verdict(found['passed'])}  "
                said = f"operators {found['are']:.2f} times {name}, goal {found['goal']:g}"
                print(f"{told}{case['keys']:,} keys: {said}")
            if part.get("passed") is not None:
                said = (
                    f"{case['keys']:,} keys: {part['millwheel_is']:.2f} times {name}, goal {part['goal']:g}"
                )
                print(f"{results.verdict(part['passed'])}  {said}")
