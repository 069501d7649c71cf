"""The latency curve: its percentiles, and what it says of its goals."""

from __future__ import annotations

from benchmarks import curve


def test_percentiles_are_of_the_sorted_latencies() -> None:
    found = curve.summary([float(n) for n in range(1_000, 0, -1)])
    assert found == {"records": 1_000, "p50": 500.0, "p95": 950.0, "p99": 990.0, "p99.9": 999.0}


def test_goals_are_compared_where_they_were_measured() -> None:
    one = {"system": "millwheel", "source": "files", "stages": 1, "rate": 1_000, "p50": 8.0, "p99": 31.0}
    three = {**one, "stages": 3, "p50": 13.0}
    peer = {**one, "system": "Bytewax", "p50": 1.0, "p99": 1.0}
    weak = {**one, "system": curve.WEAK, "p50": 6.5}
    found = {goal["what"]: goal["passed"] for goal in curve.goals([one, three, peer, weak])}
    assert found == {
        "p50 at 1,000 records/s": True,
        "p99 at 1,000 records/s": False,
        "three stages to one, p50 at 1,000 records/s": False,
        "p50 of millwheel, weak, without IDs at 1,000 records/s": False,
    }
