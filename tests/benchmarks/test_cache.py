"""What a cache saves is judged by the medians of turns, with the same results in all of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cache import judged


def _run(database: float, results: int = 7) -> dict[str, Any]:
    return {"database": database, "total": 2 * database, "results": results}


@pytest.mark.parametrize(
    ("turns", "saved", "passed"),
    [
        ([(4.0, 2.0)], 0.5, True),
        ([(9.0, 2.0), (4.0, 2.4), (4.0, 2.4)], 0.4, False),  # the first one was luck
        ([(4.0, 9.0), (4.0, 1.0), (4.0, 1.0)], 0.75, True),
    ],
)
def test_one_lucky_turn_decides_nothing(turns: list[tuple[float, float]], saved: float, passed: bool) -> None:
    pairs = [(_run(base), _run(best)) for base, best in turns]
    job = judged([*pairs[0]], pairs)
    assert job["saved_of_the_database"] == pytest.approx(saved)
    assert job["saved_of_all"] == pytest.approx(saved)
    assert job["passed"] is passed
    assert job["turns"] == [list(turn) for turn in turns]


def test_other_results_are_no_saving() -> None:
    pairs = [(_run(4.0), _run(1.0)), (_run(4.0), _run(1.0, results=6))]
    assert not judged([*pairs[0]], pairs)["passed"]
