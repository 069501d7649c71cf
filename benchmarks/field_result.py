"""The result of the field: ratios between systems, their goals, and systems that an earlier run measured."""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks import results
from benchmarks.peers.systems import SYSTEMS

GOALS = {
    "transformWithState": (5.0, 20.0),
    "transformWithState, Pandas": (5.0, 20.0),
    "plain loop": (0.5, 0.5),
}
"""How many times the other's rate, with few and with many keys; 1 where nothing is named."""
OPERATORS = "millwheel, operators"
_AHEAD = ("Pathway", "Spark groupBy", "Flink SQL")
OPERATOR_GOALS = {"plain loop": (1.5, 1.0), **dict.fromkeys(_AHEAD, (1.0, 1.0))}
"""The same of the job in operators, whose windows are kept as columns."""
PARQUET = "millwheel, Parquet"
PARQUET_GOALS = (2.0, 2.0)
"""How many times the rate from JSON lines the same job has from Parquet files."""
UNJUDGED = ("plain loop, by window", OPERATORS, PARQUET, *_AHEAD)
"""Other programs, not other systems: how fast this one job can be; a computation by hand is none of them."""
_RATIOS = ("millwheel_is", "goal", "passed", "operators", "of_lines")

Result = dict[str, Any]


def recorded(*, quick: bool) -> Result | None:
    """The result that a run of some systems is merged into: the last one here, or the page's.

    Figures of another machine are not merged with this one's: the run ends before it begins.
    """
    label = results.name("field", quick=quick)
    for path in (results.FOLDER / f"{label}.json", results.KEPT / f"{label}.json"):
        if not path.is_file():
            continue
        found: Result = json.loads(path.read_text())
        here = results.circumstances()["machine"]
        if any(found["machine"].get(part) != here[part] for part in ("cores", "memory_gb")):
            sys.exit(
                f"{path} was measured on another machine ({found['machine']}): "
                "run the field without --only, or move the file away"
            )
        return found
    return None


def merged(new: Result, old: Result | None) -> Result:
    """The new result with the systems that only an earlier one has, each with its own date and revision.

    A system that has figures in both has the new ones alone, also where a case of it failed.
    """
    old = old or {"cases": []}
    of_old = {case["keys"]: case["systems"] for case in old["cases"]}
    systems = new["measured"].keys()
    cases = []
    for place, case in enumerate(new["cases"]):
        kept = {name: part for name, part in of_old.get(case["keys"], {}).items() if name not in systems}
        both = {**kept, **case["systems"]}
        found = {system.name: both[system.name] for system in SYSTEMS if system.name in both}
        cases.append({**case, "systems": with_ratios(found, place, quick=new["quick"])})
    measured = {**_measured(old), **new["measured"]}
    absent = {**old.get("absent", {}), **new["absent"]}
    return {
        **new,
        "cases": cases,
        "measured": measured,
        "absent": {name: reason for name, reason in absent.items() if name not in measured},
        "failures": [
            *(failure for failure in _failures(old) if failure["system"] not in systems),
            *new["failures"],
        ],
    }


def _measured(old: Result) -> dict[str, Any]:
    """By system: when it was measured, and on which code; older results say it of the whole alone."""
    names = dict.fromkeys(name for case in old["cases"] for name in case["systems"])
    whole = {part: old.get(part, "") for part in ("command", "date", "revision", "code")}
    return {name: old.get("measured", {}).get(name, whole) for name in names}


def _failures(old: Result) -> list[dict[str, str]]:
    return [failure for failure in old.get("failures", ()) if isinstance(failure, dict)]


def with_ratios(systems: dict[str, Any], place: int, *, quick: bool) -> dict[str, Any]:
    """The systems of a case, with how millwheel compares with each of the others.

    ``place`` is 0 for few keys and 1 for many. A quick run passes and fails nothing.
    """
    plain = {
        name: {key: value for key, value in part.items() if key not in _RATIOS}
        for name, part in systems.items()
    }
    rate = {name: part["records_per_second"] for name, part in plain.items()}
    for name, part in plain.items():
        if "millwheel" in rate and name != "millwheel":
            ratio = round(rate["millwheel"] / rate[name], 2)
            goal = None if name in UNJUDGED else GOALS.get(name, (1.0, 1.0))[place]
            passed = None if quick or goal is None else ratio >= goal
            part |= {"millwheel_is": ratio, "goal": goal, "passed": passed}
        if OPERATORS in rate and name in OPERATOR_GOALS:
            ratio, goal = round(rate[OPERATORS] / rate[name], 2), OPERATOR_GOALS[name][place]
            part["operators"] = {"are": ratio, "goal": goal, "passed": None if quick else ratio >= goal}
        if OPERATORS in rate and name == PARQUET:
            ratio, goal = round(rate[name] / rate[OPERATORS], 2), PARQUET_GOALS[place]
            part["of_lines"] = {"is": ratio, "goal": goal, "passed": None if quick else ratio >= goal}
    return plain


def show(result: Result) -> None:
    """Prints the table, what is absent or failed, and each goal."""
    rows = [
        [
            f"{case['keys']:,}",
            name,
            part["records"],
            part["records_per_second"],
            len(part["seconds"]),
            part["start_up_seconds"],
            f"{part['millwheel_is']:.2f}" if "millwheel_is" in part else "",
            "yes" if part["same_windows"] else "NO",
        ]
        for case in result["cases"]
        for name, part in case["systems"].items()
    ]
    head = ["keys", "system", "records", "records/s", "rounds", "start-up s", "millwheel is", "right result"]
    print(results.table(head, rows))
    for name, reason in result["absent"].items():
        print(f"{name}: {reason}")
    if result["failures"]:
        print(f"{len(result['failures'])} turns failed; they are in the data")
    for case in result["cases"]:
        for name, part in case["systems"].items():
            for passed, text in _goals(name, part):
                verdict = "" if passed is None else f"{results.verdict(passed)}  "
                print(f"{verdict}{case['keys']:,} keys: {text}")


def _goals(name: str, part: dict[str, Any]) -> list[tuple[bool | None, str]]:
    goals: list[tuple[bool | None, str]] = []
    if (found := part.get("operators")) is not None:
        goals.append((found["passed"], f"operators {found['are']:.2f} times {name}, goal {found['goal']:g}"))
    if (found := part.get("of_lines")) is not None:
        text = f"Parquet {found['is']:.2f} times JSON lines, goal {found['goal']:g}"
        goals.append((found["passed"], text))
    if part.get("passed") is not None:
        text = f"{part['millwheel_is']:.2f} times {name}, goal {part['goal']:g}"
        goals.append((part["passed"], text))
    return goals
