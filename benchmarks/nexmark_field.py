"""NEXMark beside Flink SQL: records/s, the size of the state, and lines of code, query by query.

The queries in operators and in SQL read the same events from JSON lines and write JSON lines, exactly once,
each in processes of its own, in turns, timed as in `benchmarks.field`: the steady rate is what a long run
took more than a short one. Over fewer events each is compared with a batch computation; over the long input
both must have the same number of results. The state is the largest store, and the largest folder of
checkpoints, that was seen during a long run. Queries 4 and 6 are not in it: in SQL their results are updates,
which a sink of files does not take.
"""

from __future__ import annotations

import ast
import inspect
import os
import statistics
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

import millwheel as mw
from benchmarks import chart, data, field, results
from benchmarks.pace import size_of
from benchmarks.peers import environments, flink_nexmark, systems
from examples.nexmark import operators, reference, source
from examples.nexmark.events import KINDS, House

_RATE = 10_000  # events in a second of event time, as NEXMark begins with
_CHECKED, _QUICK_CHECKED = 100_000, 20_000
_LONG, _SHORT = 3_000_000, 300_000
_QUICK_LONG = 40_000
_QUICK_QUERIES = ("q1", "q5")
_PARTS = 20  # files of a kind
_LOOK = 0.25  # seconds between two looks at the size of the state
_HELPERS: dict[str, tuple[Callable[..., Any], ...]] = {
    "q5": (operators.larger,),
    "q7": (operators.larger,),
}
"""Functions of the queries in operators beside their own."""
STREAMS = {query: operators.OPERATORS[query].STREAMS for query in flink_nexmark.QUERIES}


@dataclass(frozen=True)
class Run:
    """A system that runs a query, and the folder of its state."""

    system: systems.System
    state: str


def run(*, quick: bool = False, rounds: int = 3, only: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the queries in turns, prints a table, and writes the artifacts."""
    queries = [query for query in flink_nexmark.QUERIES if query in (only or flink_nexmark.QUERIES)]
    if quick and not only:
        queries = list(_QUICK_QUERIES)
    sizes = (_QUICK_LONG, 0) if quick else (_LONG, _SHORT)
    label = results.name("nexmark_field", quick=quick)
    result: dict[str, Any] = {"quick": quick, "rounds": rounds, "events": sizes[0], "rate": _RATE}
    absent: dict[str, str] = {}
    with results.scratch("nexmark") as work:
        small = House(_QUICK_CHECKED if quick else _CHECKED, rate=_RATE)
        correct = _check(queries, small, work, absent)
        turns: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for number in range(rounds):
            for query in queries:
                for one in _runs(query):
                    if one.system.name in absent:
                        continue
                    found = _turn(query, one, sizes, work)
                    turns.setdefault((query, one.system.name), []).append(found)
                    said = f"{query}, {one.system.name}: {found['rate']:,.0f} records/s"
                    print(f"round {number + 1} of {rounds}, {said}", flush=True)
            result["queries"] = {query: _summary(query, turns, correct) for query in queries}
            result["absent"] = absent
            results.save(label, result)
    _print(result)
    names = [one.system.name for one in _runs(queries[0]) if one.system.name not in absent]
    chart.bars(
        results.artifact(f"{label}.png"),
        "NEXMark from files, records/s (median)",
        queries,
        {
            name: [result["queries"][query]["systems"][name]["records_per_second"] for query in queries]
            for name in names
        },
        logarithmic=True,
    )
    return result


def _runs(query: str) -> list[Run]:
    return [
        Run(
            systems.System(OWN, _millwheel(query), _own_rows, "exactly once, durable with every epoch"),
            "store",
        ),
        Run(systems.System(SQL, _flink(query), _lines, "exactly once, a checkpoint a second"), "checkpoints"),
    ]


OWN = "millwheel, operators"
SQL = "Flink SQL"


def _millwheel(query: str) -> systems.Prepare:
    def prepare(events: data.Input, work: Path, batch: int) -> systems.Commands:
        places = [os.fspath(place) for place in (events.folder / "parts", work / "out", work / "store")]
        house = [str(systems.CORES), str(events.records), str(_RATE)]
        return [[sys.executable, "-m", "benchmarks.pipelines.nexmark_run", query, *places, *house]]

    return prepare


def _flink(query: str) -> systems.Prepare:
    def prepare(events: data.Input, work: Path, batch: int) -> systems.Commands:
        python = os.fspath(environments.ensure(environments.FLINK))
        places = [
            os.fspath(place) for place in (events.folder / "joined", work / "out", work / "checkpoints")
        ]
        return [[python, os.fspath(Path(flink_nexmark.__file__)), query, *places, str(systems.CORES)]]

    return prepare


def generate(folder: Path, events: int) -> data.Input:
    """Writes the events: in files by time, and once more as a file of each kind for each reader."""
    source.write(folder / "parts", House(events, rate=_RATE), parts=_PARTS)
    for kind in KINDS:
        (folder / "joined" / kind).mkdir(parents=True)
        paths = sorted((folder / "parts").glob(f"{kind}-*.jsonl"))
        for number in range(systems.CORES):
            with open(folder / "joined" / kind / f"{number}.jsonl", "wb") as target:
                for path in paths[number :: systems.CORES]:
                    target.write(path.read_bytes())
    return data.Input(folder, 0, events, _PARTS)


def _own_rows(work: Path) -> list[dict[str, Any]]:
    return [record.value for record in mw.sinks.JsonLines(work / "out").records()]


def _lines(work: Path) -> list[dict[str, Any]]:
    return [
        orjson.loads(line)
        for path in (work / "out").glob("part-*")
        for line in path.read_bytes().splitlines()
    ]


def _count(work: Path) -> int:
    """The lines of the results: a row each, in both systems."""
    return sum(path.read_bytes().count(b"\n") for path in (work / "out").glob("part-*"))


def _check(
    queries: list[str], house: House, work: Path, absent: dict[str, str]
) -> dict[tuple[str, str], bool]:
    """By query and system: whether it gives the answer of the batch computation."""
    events = generate(work / "checked", house.count)
    truth = house.all()
    correct = {}
    for query in queries:
        for one in _runs(query):
            if one.system.name in absent:
                continue
            try:
                rows, _ = systems.run(one.system, events, work / "run", 0)
            except environments.Unavailable as error:
                absent[one.system.name] = f"not available: {error}"
                continue
            right = correct[query, one.system.name] = reference.same(query, rows, truth)
            print(f"{results.verdict(right)}  {query}, {one.system.name}: {len(rows):,} results", flush=True)
    return correct


def _turn(query: str, one: Run, sizes: tuple[int, int], work: Path) -> dict[str, Any]:
    """The long run of a system and the short one: its rate, results and state."""
    counting = systems.System(one.system.name, one.system.prepare, _count, one.system.guarantee)
    seconds, read, counts = [], [], []
    peak = 0
    for events in filter(None, sizes):
        folder = work / f"in-{events}"
        files = data.Input(folder, 0, events, _PARTS) if folder.is_dir() else generate(folder, events)
        with _peak(work / "run" / one.state) as largest:
            count, took = systems.run(counting, files, work / "run", 0)
        peak = max(peak, largest())
        seconds.append(took)
        counts.append(count)
        read.append(_records(query, events))
    load = field.Load(read[0], read[1] if len(read) > 1 else 0)
    rate, start = field.line(load, seconds[1] if len(seconds) > 1 else 0.0, seconds[0])
    return {
        "seconds": [round(one, 2) for one in seconds],
        "rate": rate,
        "start": start,
        "results": counts[0],
        "state": peak,
    }


def _records(query: str, events: int) -> int:
    """The events that a query reads."""
    from examples.nexmark.events import PER_ROUND, ROUND

    return sum(events * PER_ROUND[kind] // ROUND for kind in STREAMS[query])


@contextmanager
def _peak(folder: Path) -> Iterator[Callable[[], int]]:
    """Looks at a folder now and then; gives the largest size that was seen."""
    stop = threading.Event()
    found = [0]

    def watch() -> None:
        while not stop.wait(_LOOK):
            try:
                found.append(size_of(folder))
            except FileNotFoundError:
                continue  # a file that went while it was counted

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: max(found)
    finally:
        stop.set()
        thread.join()


def _summary(query: str, turns: dict[tuple[str, str], list[dict[str, Any]]], correct: Any) -> dict[str, Any]:
    found = {}
    for one in _runs(query):
        name = one.system.name
        if (query, name) not in turns:
            continue
        mine = turns[query, name]
        found[name] = {
            "records_per_second": round(statistics.median(turn["rate"] for turn in mine)),
            "rates": [round(turn["rate"]) for turn in mine],
            "start_up_seconds": round(statistics.median(turn["start"] for turn in mine), 2),
            "seconds": [turn["seconds"] for turn in mine],
            "state_bytes": max(turn["state"] for turn in mine),
            "results": mine[0]["results"],
            "lines": lines_of(query, name),
            "correct": correct[query, name],
        }
    counts = {part["results"] for part in found.values()}
    return {"systems": found, "same_number_of_results": len(counts) == 1}


def lines_of(query: str, system: str) -> int:
    """Lines of code of a query: statements without their docstring, or SQL, without the declared tables."""
    if system == SQL:
        return len(flink_nexmark.QUERIES[query][1].strip().splitlines())
    functions = (operators.OPERATORS[query].add, *_HELPERS.get(query, ()))
    return sum(_body_lines(function) for function in functions)


def _body_lines(function: Callable[..., Any]) -> int:
    found = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(found, ast.FunctionDef)
    body = found.body[1:] if ast.get_docstring(found) else found.body
    return sum((one.end_lineno or one.lineno) - one.lineno + 1 for one in body)


def _print(result: dict[str, Any]) -> None:
    head = ["query", "system", "records/s", "state, MB", "lines", "results", "right"]
    rows = [
        [
            query,
            name,
            part["records_per_second"],
            part["state_bytes"] / 1e6,
            part["lines"],
            part["results"],
            "yes" if part["correct"] and found["same_number_of_results"] else "NO",
        ]
        for query, found in result["queries"].items()
        for name, part in found["systems"].items()
    ]
    print(results.table(head, rows))
    for name, reason in result["absent"].items():
        print(f"{name}: {reason}")
