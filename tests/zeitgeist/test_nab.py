"""The scoring function, and the detector under it: labelled series, one set of parameters, no look-ahead."""

from __future__ import annotations

import pytest

from benchmarks import nab as benchmark
from millwheel.apps.zeitgeist import nab
from millwheel.apps.zeitgeist.offline import detect


def test_the_perfect_detector_has_100_and_the_null_detector_0() -> None:
    windows = [(100, 149), (400, 499)]
    assert nab.normalise(nab.score([100, 400], windows), 2) == pytest.approx(100)
    assert nab.normalise(nab.score([], windows), 2) == 0


def test_earlier_is_better_and_only_the_best_detection_of_a_window_counts() -> None:
    window = [(100, 199)]
    scores = [nab.score([row], window) for row in (100, 120, 150, 180, 199)]
    assert scores == sorted(scores, reverse=True)
    assert nab.score([120, 150, 199], window) == nab.score([120], window)


def test_a_false_alarm_costs_more_the_farther_it_is_behind_a_window() -> None:
    window = [(100, 199)]
    found = nab.score([100], window)
    costs = [found - nab.score([100, row], window) for row in (201, 220, 260, 900)]
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(0.11)
    assert found - nab.score([50, 100], window) == pytest.approx(0.11)


def test_what_is_told_while_it_learns_is_not_scored() -> None:
    assert nab.score([10, 20, 100], [(100, 199)], first=30) == 1.0


@pytest.mark.skipif(not benchmark.DATA.is_dir(), reason="the labelled series are not beside the repository")
def test_the_detector_reaches_its_goal_on_the_labelled_series() -> None:
    everything = nab.load(benchmark.DATA)
    total = sum(
        nab.score(
            detect(benchmark.SETTINGS, zip(series.times, series.values, strict=True)),
            series.windows,
            series.probation,
        )
        for series in everything
    )
    assert nab.normalise(total, sum(len(series.windows) for series in everything)) >= 65


def test_nothing_behind_a_row_changes_what_is_told_at_it() -> None:
    rows = [(n * 1_000_000, float(n * 7_919 % 101)) for n in range(600)]
    rows[400] = (rows[400][0], 900.0)
    whole = detect(benchmark.SETTINGS, rows)
    assert 400 in whole
    assert detect(benchmark.SETTINGS, rows[:450]) == [row for row in whole if row < 450]


def test_a_group_is_judged_with_the_sensitivity_that_is_best_for_the_others() -> None:
    levels = {
        "a/1": (dict.fromkeys(benchmark.LEVELS, 1.0) | {2.5: -1.0, 2.6: -1.0, 2.7: -1.0}, 1),
        "b/1": (dict.fromkeys(benchmark.LEVELS, -1.0) | {2.5: 1.0, 2.6: 1.0, 2.7: 1.0}, 1),
    }
    assert benchmark.validated(levels, ["a", "b"]) == 0.0
    assert benchmark.validated(levels, ["both", "both"]) <= 50.0
