"""The scoring function, and the detector under it: labelled series, one set of parameters, no look-ahead."""

from __future__ import annotations

import pytest

from benchmarks import labelled, nested
from benchmarks import nab as benchmark
from benchmarks.rarities import Ranks, Shape
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


def test_a_group_is_scored_with_what_is_best_for_the_others() -> None:
    choices = {(Shape(rest=1), 2.5): [1.0, -1.0], (Shape(rest=2), 2.5): [-1.0, 1.0]}
    points, chosen = nested.validated(choices, ["a", "b"])
    assert points == [-1.0, -1.0]
    assert chosen == {"a": (Shape(rest=2), 2.5), "b": (Shape(rest=1), 2.5)}


def test_a_sensitivity_earns_what_its_neighbours_do_too() -> None:
    calm = [10.0 + n % 7 + n % 5 for n in range(1_200)]
    series = nab.Series("a spike", range(0, 1_200_000_000, 1_000_000), [*calm[:-1], 900.0], [(1_199, 1_199)])
    ranks = Ranks(benchmark.SETTINGS, series)
    near = [ranks.score(Shape(sensitivity=level)) for level in nested.LEVELS[:3]]
    found = nested.choices(nested.earned(benchmark.SETTINGS, [series], [Shape()]), [Shape()])
    assert found[Shape(), nested.LEVELS[1]] == [pytest.approx(sum(near) / 3)]


@pytest.mark.parametrize(
    "kind", ["a daily cycle shifts up", "values stand still", "a spike in a rough series"]
)
def test_kept_ranks_report_what_the_detector_does(kind: str) -> None:
    (series, *_) = labelled.series([kind])[kind]
    found = detect(benchmark.GENERATED, zip(series.times, series.values, strict=True))
    assert found
    assert Ranks(benchmark.GENERATED, series).detect(Shape()) == found


def test_the_error_of_a_difference_is_that_of_the_mean_of_the_series() -> None:
    windows = [1] * 100
    points = [1.0, -1.0] * 50
    assert nested.error(points, points, windows) == 0.0
    assert nested.error(points, [0.0] * 100, windows) == pytest.approx(5.0, rel=0.1)
