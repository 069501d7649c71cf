"""The windowed count with its state in PostgreSQL, in LMDB, and on `transformWithState`, in turns.

The job, the input and the windows that all three must find are those of `benchmarks.throughput`. The
database runs on the same machine and takes its share of the same cores.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import chart, counted, results
from benchmarks.peers import transform_with_state
from benchmarks.server import postgres
from benchmarks.session import session
from benchmarks.throughput import CASES, QUICK_CASES, Case, Comparison, summary
from tests.servers.postgres import Cluster

_TARGET = 2.0  # times the peer, at the first case's number of keys


def run(*, quick: bool = False, rounds: int = 3) -> dict[str, Any]:
    """Runs the case of few keys, prints a table, and writes the artifacts."""
    case = (QUICK_CASES if quick else CASES)[0]
    with (
        postgres() as server,
        results.scratch("postgres") as work,
        session(work, transform_with_state.SETTINGS) as spark,
    ):
        rates, same = _rates(Comparison(case, spark, work), server, case, rounds)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratio = medians["millwheel, PostgreSQL"] / medians["transformWithState"]
    result = {
        "quick": quick,
        "keys": case.keys,
        "same_windows": same,
        **{name: summary(case.records, found) for name, found in rates.items()},
        "ratio": ratio,
        "of_lmdb": medians["millwheel, PostgreSQL"] / medians["millwheel, LMDB"],
        "target": _TARGET,
        "passed": same and ratio >= _TARGET,
    }
    name = results.name("postgres", quick=quick)
    results.save(name, result)
    rows = [[name, medians[name], min(found), max(found)] for name, found in rates.items()]
    print(results.table(["system", "records/s", "slowest", "fastest"], rows))
    judged = "not judged" if quick else results.verdict(bool(result["passed"]))
    print(
        f"{judged}  {case.keys:,} keys: with PostgreSQL {ratio:.1f} times the peer (target {_TARGET:.0f}), "
        f"and {result['of_lmdb']:.2f} of LMDB; {'the same windows' if same else 'NOT THE SAME WINDOWS'}"
    )
    chart.bars(
        results.artifact(f"{name}.png"),
        "Windowed count, records/s (median)",
        [f"{case.keys:,} keys"],
        {name: [round(rate)] for name, rate in medians.items()},
    )
    return result


def _rates(
    comparison: Comparison, server: Cluster, case: Case, rounds: int
) -> tuple[dict[str, list[float]], bool]:
    """By system: the records that it takes in a second, in each round; and whether all agree."""
    source = comparison.short
    truth = counted.truth(source)
    rates: dict[str, list[float]] = {}
    same = True
    for number in range(rounds + 1):  # the first of them warms up
        runs = {
            "millwheel, PostgreSQL": comparison.millwheel(source, f"{server.url()}?schema=round_{number}"),
            "millwheel, LMDB": comparison.millwheel(source),
            "transformWithState": comparison.peer(source),
        }
        for name, (counts, seconds) in runs.items():
            same = same and counts == truth
            if number:
                rates.setdefault(name, []).append(case.records / seconds)
        told = ", ".join(f"{name} {case.records / seconds:,.0f}" for name, (_, seconds) in runs.items())
        print(f"round {number} of {rounds}: {told} records/s", flush=True)
    return rates, same
