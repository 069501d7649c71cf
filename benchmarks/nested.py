"""Nested validation: every parameter is chosen without the series that it is scored on.

For each category, or file, the shape of the model and its sensitivity are the ones that earn most on all
others. What a sensitivity earns is the mean with its two neighbours: a best by luck is no choice. The
ablation changes one parameter at a time, and is the mean of several shapes: a single one has luck.
"""

from __future__ import annotations

import functools
import os
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.rarities import Ranks, Shape
from millwheel.apps.zeitgeist import nab
from millwheel.apps.zeitgeist.settings import Settings

LEVELS = tuple(level / 10 for level in range(22, 35))
"""Sensitivities; chosen from those that have two neighbours."""
SCALES = ((1, 8, 64), (1, 4, 16, 64), (1, 3, 9, 27, 81), (1, 12, 96), (1, 5, 25), (1, 16))
RESTS = (50, 100, 200)
_AROUND: dict[str, tuple[Any, ...]] = {
    "scales": SCALES,
    "others": (("relative", "rough", "stiff"), ("rough", "stiff"), ("relative", "stiff"), ("relative",), ()),
    "season": (True, False),
    "tail": (0.0125, 0.025, 0.05),
    "bins_per_e": (2.0, 4.0),
    "rarer": (0.25, 0.5, 0.75),
    "less_rare": (True, False),
    "rest": RESTS,
    "far_rarer": (1.0, 2.0, 99.0),
}
"""What the nested choice is among: every parameter, coarsely, around the detector's own."""
GRIDS, _SHAPES = 5, 60
_DRAWS = 1_000

Choice = tuple[Shape, float]
Choices = Mapping[Choice, Sequence[float]]
"""What can be chosen, and what it earns on each series."""


def grid(number: int, shapes: int = _SHAPES) -> list[Shape]:
    """The detector's own shape and others, drawn from all combinations: one of several such grids."""
    rng = random.Random(number)
    drawn = [
        Shape(**{name: rng.choice(values) for name, values in _AROUND.items()}) for _ in range(shapes - 1)
    ]
    return [Shape(), *drawn]


def earned(
    settings: Settings, everything: Sequence[nab.Series], shapes: Iterable[Shape]
) -> dict[Shape, dict[float, list[float]]]:
    """By shape and sensitivity: the points of each series. Series are ranked on all cores."""
    several = list(dict.fromkeys(shapes))
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(everything))) as pool:
        by_series = list(pool.map(functools.partial(_points, settings, several), everything))
    return {
        shape: {level: [points[n][place] for points in by_series] for place, level in enumerate(LEVELS)}
        for n, shape in enumerate(several)
    }


def _points(settings: Settings, shapes: Sequence[Shape], series: nab.Series) -> list[list[float]]:
    ranks = Ranks(settings, series)
    return [[ranks.score(shape._replace(sensitivity=level)) for level in LEVELS] for shape in shapes]


def choices(points: Mapping[Shape, Mapping[float, Sequence[float]]], shapes: Iterable[Shape]) -> Choices:
    """What each shape and sensitivity earns on each series: the mean with the neighbouring sensitivities."""
    found = {}
    for shape in shapes:
        for place in range(1, len(LEVELS) - 1):
            near = [points[shape][level] for level in LEVELS[place - 1 : place + 2]]
            found[shape, LEVELS[place]] = mean(near)
    return found


def validated(choices: Choices, groups: Sequence[str]) -> tuple[list[float], dict[str, Choice]]:
    """The points of each series with the choice that is best without its group, and the choices."""
    chosen = {}
    for group in dict.fromkeys(groups):
        others = [number for number, name in enumerate(groups) if name != group]
        chosen[group] = max(choices, key=lambda choice: sum(choices[choice][number] for number in others))
    return [choices[chosen[group]][number] for number, group in enumerate(groups)], chosen


def mean(several: Sequence[Sequence[float]]) -> list[float]:
    """The mean points of each series."""
    return [statistics.fmean(of_series) for of_series in zip(*several, strict=True)]


def normal(points: Sequence[float], windows: Sequence[int]) -> float:
    """The score of some series together."""
    return nab.normalise(sum(points), sum(windows))


def by_category(points: Sequence[float], windows: Sequence[int], groups: Sequence[str]) -> dict[str, float]:
    """The score of each category that has an anomaly."""
    found = {}
    for group in dict.fromkeys(groups):
        inside = [number for number, name in enumerate(groups) if name == group]
        if any(windows[number] for number in inside):
            found[group] = normal([points[n] for n in inside], [windows[n] for n in inside])
    return found


def error(points: Sequence[float], others: Sequence[float], windows: Sequence[int]) -> float:
    """The standard error of the difference of two scores: that of series drawn again and again."""
    rng, drawn = random.Random(0), []
    differences = [one - other for one, other in zip(points, others, strict=True)]
    while len(drawn) < _DRAWS:
        numbers = rng.choices(range(len(windows)), k=len(windows))
        if found := sum(windows[number] for number in numbers):
            drawn.append(50.0 * sum(differences[number] for number in numbers) / found)
    return statistics.pstdev(drawn)


CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no relative error": {"others": ("rough", "stiff")},
    "no roughness": {"others": ("relative", "stiff")},
    "no stiffness": {"others": ("relative", "rough")},
    "neither of the two": {"others": ("relative",)},
    "no season": {"season": False},
    "no rest": {"rest": 0},
    "a rest without exception": {"far_rarer": 99.0},
    "as rare at any age": {"rarer": 0.0},
    "no less rare when young": {"less_rare": False},
    "neither relative nor less rare": {"others": ("rough", "stiff"), "less_rare": False},
    "tail of 1.25%": {"tail": 0.0125},
    "tail of 5%": {"tail": 0.05},
    "bins half as fine": {"bins_per_e": 2.0},
    "bins twice as fine": {"bins_per_e": 8.0},
    "one scale": {"scales": (1,)},
}


def changed(quick: bool) -> dict[str, list[Shape]]:
    """By change: several shapes that have it."""
    around = [Shape(scales=scales, rest=rest) for scales in SCALES for rest in RESTS[:2]]
    return {
        name: list(dict.fromkeys(shape._replace(**change) for shape in (around[:1] if quick else around)))
        for name, change in CHANGES.items()
    }


def ablation(
    points: Mapping[Shape, Mapping[float, Sequence[float]]],
    shapes: Mapping[str, Sequence[Shape]],
    windows: Sequence[int],
    groups: Sequence[str],
) -> dict[str, dict[str, Any]]:
    """By change: the validated score, by category too, and the difference to no change with its error."""
    found: dict[str, dict[str, Any]] = {}
    usual: list[float] = []
    for name, several in shapes.items():
        got = mean([validated(choices(points, [shape]), groups)[0] for shape in several])
        usual = usual or got
        found[name] = {
            "by_category": normal(got, windows),
            "difference": normal(got, windows) - normal(usual, windows),
            "error": error(got, usual, windows),
            "categories": by_category(got, windows, groups),
        }
    return found
