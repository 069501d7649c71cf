"""The latency curve: its percentiles, and what it says of its goals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import curve, latency, tables
from benchmarks.peers import environments


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


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that take no time, of which one fails; and one peer is not there."""

    def turn(spark: Any, work: Path, start: Any, seconds: float, *, rate: int, target: Any) -> list[float]:
        with start(None, work, work, work):
            return [1.0, 2.0]

    @contextmanager
    def there(*given: Any) -> Iterator[None]:
        yield

    @contextmanager
    def fails(*given: Any) -> Iterator[None]:
        raise RuntimeError("it stopped")
        yield

    @contextmanager
    def absent(*given: Any) -> Iterator[None]:
        raise environments.Unavailable("not installed")
        yield

    def no_broker(stack: Any) -> Any:
        raise RuntimeError("no broker")

    monkeypatch.setattr(latency, "turn", turn)
    monkeypatch.setattr(curve, "topics", no_broker)
    monkeypatch.setattr(curve, "starter", lambda *given, **options: there)
    monkeypatch.setattr(curve, "PEERS", {"fails": fails, "absent": absent, "there": there})


def test_a_system_that_fails_costs_nothing_of_the_others_and_each_turn_is_kept(
    turns: None, tmp_path: Path
) -> None:
    kept: list[int] = []
    points, reasons = curve.measure(
        None,  # type: ignore[arg-type]
        tmp_path,
        quick=True,
        keep=lambda points, absent: kept.append(len(points) + len(absent)),
    )
    assert [point["system"] for point in points] == [curve.OWN, curve.OWN, curve.WEAK, "there"]
    assert reasons == {
        "Kafka": "no broker",
        "fails, files, 1, 1000": "it stopped",
        "absent": "not installed",
    }
    assert kept == [2, 3, 4, 5, 6, 7]


def test_the_table_says_whose_records_arrive_before_they_are_durable() -> None:
    case = {"source": "files", "stages": 1, "rate": 1_000, "p50": 8.0}
    percentiles = {"p50": 1.0, "p95": 1.0, "p99": 1.0}
    result = {
        "systems": {"millwheel": percentiles, "PyFlink": percentiles},
        "curve": [{"system": name, **case} for name in ("millwheel", "Bytewax", "PyFlink, threads")],
        "curve_goals": [],
    }
    lines = tables.RENDERERS["latency"](result).splitlines()
    early = [line.split(" | ")[0] for line in lines if "before it is durable" in line]
    assert early == ["| PyFlink", "| Bytewax", "| PyFlink, threads"]
    assert [line.split(" | ")[0] for line in lines if " durable |" in line and "before" not in line] == [
        "| millwheel",
        "| millwheel",
    ]
