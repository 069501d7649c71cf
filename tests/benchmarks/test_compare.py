"""Two revisions are compared by the ratios of rounds, and a difference within the noise is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import compare

ROOT = Path(compare.__file__).parents[1]


@pytest.mark.parametrize(
    ("samples", "changed"),
    [
        ([1.1, 1.2, 1.15, 1.3, 1.12], True),
        ([0.9, 1.2, 1.15, 1.3, 1.12], False),  # five rounds: one on the other side is noise
        ([0.9, *[1.1] * 7], True),  # eight rounds: one is an outlier
        ([0.8, 0.7, 0.9], True),
        ([1.0, 1.0, 1.0], False),
    ],
)
def test_a_change_is_one_that_all_rounds_but_outliers_show(samples: list[float], changed: bool) -> None:
    assert compare.ratio(samples).changed is changed


def test_the_median_is_between_the_bounds_and_outliers_are_outside() -> None:
    found = compare.ratio([0.1, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 9.0])
    assert found.low <= found.median <= found.high
    assert (found.low, found.high) == (1.0, 1.5)


def test_the_other_revision_runs_with_the_benchmarks_of_this_one() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    revision = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with compare.checkout(revision) as place:
        assert (place / "millwheel" / "__init__.py").is_file()
        mine = (ROOT / "benchmarks" / "compare.py").read_text()
        assert (place / "benchmarks" / "compare.py").read_text() == mine
    assert not place.exists()
