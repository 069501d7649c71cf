"""NEXMark: records/s of each query on Spark, everything durable, events made by the injector.

Each query is there twice, written by hand and in operators; those from q13 on in operators only. Each is
first run over fewer events and compared with a batch computation; then the queries take turns.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import chart, results
from benchmarks.session import session
from examples.nexmark import reference, source
from examples.nexmark.events import House
from examples.nexmark.operators import OPERATORS
from examples.nexmark.pipeline import MAX_SKEW, pipeline
from examples.nexmark.queries import QUERIES

_RATE = 10_000  # events in a second of event time, as NEXMark begins with
_EVENTS = 1_000_000
_CHECKED = 100_000
_OPERATORS = " in operators"
_NEW = OPERATORS.keys() - QUERIES.keys()  # which nobody wrote by hand
_CASES = [case for query in OPERATORS for case in (query, query + _OPERATORS) if case not in _NEW]


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs every query, prints a table, and writes the artifacts."""
    small = House(_CHECKED // 5 if quick else _CHECKED, rate=_RATE)
    house = small if quick else House(_EVENTS, rate=_RATE)
    correct: dict[str, bool] = {}
    turns: dict[str, list[dict[str, Any]]] = {case: [] for case in _CASES}
    with results.scratch("nexmark") as work, session(work) as spark:
        events = small.all()
        for case in _CASES:
            checked = _turn(spark, work / "turn", case, small)
            rows = checked.pop("rows")
            if quick:  # this is its turn too
                turns[case].append(checked)
            correct[case] = reference.same(case.removesuffix(_OPERATORS), rows, events)
            print(
                f"{results.verdict(correct[case])}  {case}: the batch answer, {len(rows):,} results",
                flush=True,
            )
        del events
        for number in range(0 if quick else rounds):
            for case in _CASES:  # both ways of a query, one soon behind the other
                turns[case].append(_turn(spark, work / "turn", case, house))
                rate = turns[case][-1]["rate"]
                print(f"round {number + 1} of {rounds}: {case}, {rate:,.0f} records/s", flush=True)
    cases = {query: _summary(found, correct[query], house) for query, found in turns.items()}
    result = {"quick": quick, "rounds": rounds, "events": house.count, "rate": _RATE, "queries": cases}
    label = results.name("nexmark", quick=quick)
    results.save(label, result)
    head = ["query", "records", "results", "records/s", "slowest", "fastest", "events/s", "correct"]
    keys = ("records", "results", "records_per_second", "slowest", "fastest", "events_per_second", "correct")
    print(results.table(head, [[query, *(case[key] for key in keys)] for query, case in cases.items()]))
    print("records/s are those that the query reads; events/s count all that happened meanwhile.")
    chart.bars(
        results.artifact(f"{label}.png"),
        "NEXMark, records/s (median)",
        list(cases),
        {"records/s": [case["records_per_second"] for case in cases.values()]},
    )
    return result


def _turn(spark: SparkSession, folder: Path, case: str, house: House) -> dict[str, Any]:
    """One run on a new store; the results of a small one are read back."""
    sink = mw.sinks.JsonLines(folder / "results")
    query, operators = case.removesuffix(_OPERATORS), case.endswith(_OPERATORS)
    p = pipeline(query, source.made(house), sink, operators=operators)
    started = time.perf_counter()
    report = mw.run(p, store=folder / "store", spark=spark, max_skew=MAX_SKEW, progress=False)
    seconds = time.perf_counter() - started
    rows = [record.value for record in sink.records()] if house.count <= _CHECKED else []
    shutil.rmtree(folder)
    return {
        "seconds": seconds,
        "rate": report.records_in / seconds,
        "records": report.records_in,
        "results": report.streams["results"],
        "rows": rows,
    }


def _summary(turns: list[dict[str, Any]], correct: bool, house: House) -> dict[str, Any]:
    rates = [turn["rate"] for turn in turns]
    return {
        "records": turns[0]["records"],
        "results": turns[0]["results"],
        "records_per_second": round(statistics.median(rates)),
        "slowest": round(min(rates)),
        "fastest": round(max(rates)),
        "events_per_second": round(house.count / statistics.median(turn["seconds"] for turn in turns)),
        "correct": correct,
    }
