"""``python -m benchmarks page``: the tables of docs/performance.md, from the results of full runs.

The results that the page is made from are kept in docs/figures, with their charts. A new full run leaves
its own in artifacts/bench; this command takes them over, and writes what is between

    <!-- figures: NAME -->  and  <!-- end -->

anew, with the machine, the versions, the command and the date. What is around it is written by hand.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.__main__ import NAMES

_ROOT = Path(__file__).resolve().parent.parent
PAGE = _ROOT / "docs" / "performance.md"
FIGURES = _ROOT / "docs" / "figures"
_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def run(*, quick: bool = False, check: bool = False) -> None:
    """Takes over new results and writes the page; with ``check``, ends with 1 where it is not up to date."""
    if not check:
        taken = take_over(named(PAGE.read_text()), results.FOLDER, FIGURES)
        print(f"taken over: {', '.join(taken) or 'nothing new'}")
    old = PAGE.read_text()
    new = rendered(old, FIGURES)
    if check and new != old:
        sys.exit("docs/performance.md is not what docs/figures says: run python -m benchmarks page")
    if not check:
        PAGE.write_text(new)


def named(text: str) -> list[str]:
    """The benchmarks that a page has tables of."""
    return [match[2] for match in _BLOCK.finditer(text)]


def take_over(names: list[str], source: Path, target: Path) -> list[str]:
    """Copies the results of full runs that are new, each with its chart; returns their names."""
    target.mkdir(parents=True, exist_ok=True)
    taken = []
    for name in names:
        found = source / f"{name}.json"
        if not found.is_file() or json.loads(found.read_text()).get("quick"):
            continue
        if (target / found.name).is_file() and (target / found.name).read_text() == found.read_text():
            continue
        shutil.copyfile(found, target / found.name)
        chart = found.with_suffix(".png")
        if chart.is_file():
            shutil.copyfile(chart, target / chart.name)
        taken.append(name)
    return taken


def rendered(text: str, figures: Path) -> str:
    """The page with its tables; those of which there is no result yet say so."""

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if name not in NAMES:
            raise ValueError(
                f"docs/performance.md: there is no benchmark {name!r}; there are {', '.join(NAMES)}"
            )
        path = figures / f"{name}.json"
        if not path.is_file():
            return f"{match[1]}Not measured yet: `python -m benchmarks {name}`.\n{match[3]}"
        result = json.loads(path.read_text())
        parts = [RENDERERS.get(name, any_table)(result), _circumstances(name, result)]
        if path.with_suffix(".png").is_file():
            parts.append(f"![{name}](figures/{name}.png)")
        return match[1] + "\n\n".join(parts) + "\n" + match[3]

    return _BLOCK.sub(block, text)


def _circumstances(name: str, result: dict[str, Any]) -> str:
    machine = result["machine"]
    said = [f"`{result.get('command', f'python -m benchmarks {name}')}`"]
    if "date" in result:
        said.append(result["date"])
    said.append(f"{machine['cores']} cores")
    if "memory_gb" in machine:
        said.append(f"{machine['memory_gb']} GB")
    said.append(f"Python {machine['python']}")
    for package, version in result.get("versions", {}).items():
        said.append(f"{package} {version}")
    return f"*{', '.join(said)}; [data](figures/{name}.json).*"


def markdown(head: list[str], rows: list[list[object]]) -> str:
    """A table.

    >>> print(markdown(["a", "b"], [["x", 1_000]]))
    | a | b |
    |---|---|
    | x | 1,000 |
    """
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(results.text(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _field(result: dict[str, Any]) -> str:
    rows: list[list[object]] = []
    for case in result["cases"]:
        for name, part in case["systems"].items():
            ratio = part.get("millwheel_is")
            goal = f"{part['goal']:g}" if ratio else ""
            windows = "yes" if part["same_windows"] else "NO"
            rows.append(
                [
                    case["keys"],
                    name,
                    part["records_per_second"],
                    f"{part['start_up_seconds']:.1f} s",
                    f"{ratio:.2f}" if ratio else "",
                    goal,
                    windows,
                    part["guarantee"],
                ]
            )
    head = [
        "keys",
        "system",
        "records/s",
        "start-up",
        "millwheel is, times",
        "goal",
        "right result",
        "guarantee",
    ]
    absent = [f"{name}: {reason}" for name, reason in result["absent"].items()]
    return "\n\n".join([markdown(head, rows), *absent])


def _throughput(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            case["keys"],
            case["millwheel"]["median"],
            case["transformWithState"]["median"],
            case["ratio"],
            case["target"],
        ]
        for case in result["cases"]
    ]
    return markdown(["keys", "millwheel, records/s", "transformWithState, records/s", "ratio", "goal"], rows)


_PERCENTILES = ("p50", "p95", "p99")


def _latency(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, *(f"{part[key]:,.0f} ms" for key in _PERCENTILES)] for name, part in result["systems"].items()
    ]
    return markdown(["", *_PERCENTILES], rows)


def _guarantees(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, *(f"{part[key]:,.0f} ms" for key in _PERCENTILES), part["records_per_second"]]
        for name, part in result["cases"].items()
    ]
    return markdown(["", *_PERCENTILES, "records/s"], rows)


def _lag(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [name, f"{part['mean']:,.0f} ms", f"{part['stdev']:,.0f} ms"]
        for name, part in result["lag_milliseconds"].items()
    ]
    return markdown(["", "behind real time (mean)", "standard deviation"], rows)


def _sweeps(result: dict[str, Any]) -> str:
    tables = []
    for name, parts in result["sweeps"].items():
        rows: list[list[object]] = [["records/s", *(part["records_per_second"] for part in parts)]]
        tables.append(markdown([name, *(f"{part['x']:,}" for part in parts)], rows))
    return "\n\n".join(tables)


def _recovery(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            part["keys"],
            f"{part['store_bytes'] / 1e6:,.0f} MB",
            f"{part['median']:.1f} s",
            f"{max(part['seconds']):.1f} s",
        ]
        for part in result["points"]
    ]
    return markdown(["keys in state", "store", "kill -9 to the first new output (median)", "longest"], rows)


def _growth(result: dict[str, Any]) -> str:
    length, keys, store = result["length"], result["keys"], result["store"]
    costs = markdown(
        ["records, millions", *(f"{at / 1e6:,.0f}" for at in length["at"])],
        [["µs a record", *(f"{cost:.1f}" for cost in length["microseconds"])]],
    )
    by_keys = markdown(
        ["keys", *(f"{part['keys']:,}" for part in keys["points"])],
        [["µs a record", *(f"{part['microseconds']:.1f}" for part in keys["points"])]],
    )
    sizes = markdown(
        ["bytes of state", *(f"{part['state']:,}" for part in store["points"])],
        [["bytes of the store for each", *(f"{part['ratio']:.2f}" for part in store["points"])]],
    )
    said = (
        f"The last records of {length['records']:,} in one run took {length['last_to_first']:.2f} times as "
        f"long as the first (goal: at most {length['limit']:g}); over the keys the most costly took "
        f"{keys['most_to_least']:.2f} times the least (goal: {keys['limit']:g})."
    )
    return "\n\n".join([costs, by_keys, sizes, said])


def _profile(result: dict[str, Any]) -> str:
    cases = result["cases"]
    parts = list(dict.fromkeys(part for case in cases.values() for part in case["cpu"]))
    rows: list[list[object]] = [
        [part, *(f"{case['cpu'].get(part, 0.0):.2f}" for case in cases.values())] for part in parts
    ]
    rows.append(["all", *(f"{case['cpu_microseconds']:.2f}" for case in cases.values())])
    return markdown(["µs of CPU a record", *cases], rows)


def _memory(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [part["role"], f"{part['peak_rss'] / 1e6:,.0f} MB", f"{part['peak_private'] / 1e6:,.0f} MB"]
        for part in result["processes"]
    ]
    said = (
        f"{result['keys']:,} keys, {result['records_per_second']:,} records/s, a store of "
        f"{result['store_bytes'] / 1e6:,.0f} MB."
    )
    return "\n\n".join([said, markdown(["process", "peak resident", "of that its own"], rows)])


def _postgres(result: dict[str, Any]) -> str:
    systems = {name: part for name, part in result.items() if isinstance(part, dict) and "median" in part}
    rows: list[list[object]] = [[name, part["median"]] for name, part in systems.items()]
    said = (
        f"{result['keys']:,} keys: PostgreSQL has {result['ratio']:.1f} times the rate of "
        f"`transformWithState` (goal: {result['target']:g}), and {result['of_lmdb']:.2f} of that of LMDB."
    )
    return "\n\n".join([markdown(["", "records/s"], rows), said])


def _manykeys(result: dict[str, Any]) -> str:
    rows: list[list[object]] = [
        [
            int(keys),
            f"{spent:.1f} ms",
            f"{result['behind_a_checkpoint'][keys]:.1f} ms",
            result["round_trips"][keys],
            f"{result['bytes'][keys] / 1e6:,.0f} MB",
        ]
        for keys, spent in result["milliseconds"].items()
    ]
    head = ["keys", "an epoch (median)", "behind a checkpoint of the server", "round trips", "store"]
    said = f"{result['ratio']:.2f} times as long (goal: at most {result['target']:g})."
    return "\n\n".join([markdown(head, rows), said])


def any_table(result: dict[str, Any]) -> str:
    """The first list or dict of cases in a result, with what of them is text or a number.

    >>> print(any_table({"machine": {"cores": 2}, "cases": {"a": {"seconds": 1.5, "all": [1, 2]}}}))
    |  | seconds |
    |---|---|
    | a | 1.5 |
    """
    for place, value in result.items():
        if place in ("machine", "versions"):
            continue
        cases = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(cases, dict) or not cases or not all(isinstance(c, dict) for c in cases.values()):
            continue
        first: dict[str, Any] = next(iter(cases.values()))
        heads = [head for head, cell in first.items() if isinstance(cell, str | int | float)]
        rows = [
            [name if isinstance(name, str) else "", *(case.get(head, "") for head in heads)]
            for name, case in cases.items()
        ]
        return markdown(["", *(head.replace("_", " ") for head in heads)], rows)
    raise ValueError("a result without cases has no table: write a renderer for it")


RENDERERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "field": _field,
    "throughput": _throughput,
    "latency": _latency,
    "guarantees": _guarantees,
    "lag": _lag,
    "sweeps": _sweeps,
    "recovery": _recovery,
    "growth": _growth,
    "profile": _profile,
    "memory": _memory,
    "postgres": _postgres,
    "manykeys": _manykeys,
}
