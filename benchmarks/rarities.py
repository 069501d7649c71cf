"""What the detector of measured values would report with other parameters, from ranks that are kept.

A size is ranked among the earlier ones of its own statistic, whatever else is watched or reported. So each
statistic of a series is ranked once, and a combination of statistics, rests and sensitivities is a pass over
the few rows that are rare in one of them: a thousand combinations take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log, log10
from typing import NamedTuple

from millwheel.apps.zeitgeist import nab
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.value_model import ValueModel

_LOWEST = 2.0  # decades: sizes less rare are not kept ...
_LOWER = 0.75  # ... but so many decades less for each tenfold shorter history than ...
_RECENT, _USUAL, _STILL = 0.06, 0.003, 0.01
_HISTORY = 1_000  # ... these buckets
_YOUNG, _LEARNED, _FEWEST = 300, 30, 3
_RANGE = 11  # natural logarithms that the bins span
_PLACES = 2_000  # of a histogram without bounds
_TINY, _LN10 = 1e-12, log(10)
_NEVER = -1_000_000


class Shape(NamedTuple):
    """The parameters of the detector; a test keeps the default equal to the detector's own."""

    scales: tuple[int, ...] = (1, 8, 64)
    others: tuple[str, ...] = ("relative", "rough", "stiff")
    season: bool = True
    tail: float = 0.025
    bins_per_e: float = 4.0
    rarer: float = 0.5
    less_rare: bool = True
    rest: int = 100
    far_rarer: float = 2.0
    calm: int = 20
    sensitivity: float = 2.7


class Rare(NamedTuple):
    """A row that is rare in a statistic: by how many decades, among how many sizes."""

    row: int
    age: int
    decades: float


class Ranks:
    """The rare rows of a series by statistic, each ranked when it is first asked for."""

    def __init__(self, settings: Settings, series: nab.Series) -> None:
        self.series = series
        self._errors: dict[bool, list[float]] = {True: [], False: []}
        self._relative: list[float] = []
        self._first = len(series.values)
        self._forecast(settings)
        self._known: dict[tuple[object, ...], list[Rare]] = {}
        self._merged: dict[tuple[object, ...], list[Rare]] = {}

    def score(self, shape: Shape) -> float:
        """What the alarms of a shape earn on this series."""
        return nab.score(self.detect(shape), self.series.windows, self.series.probation)

    def detect(self, shape: Shape) -> list[int]:
        """The rows at which an anomaly begins, as `offline.detect` reports them for the default shape."""
        begun: list[int] = []
        open_to, told, told_decades = _NEVER, _NEVER, 0.0
        for row, age, rarity in self._rarest(shape):
            history = log10(age / _HISTORY) if age >= _YOUNG else 0.0
            decades = rarity - shape.rarer * (history if shape.less_rare else max(history, 0.0))
            if decades < shape.sensitivity:
                continue
            if row <= open_to:
                open_to = row + shape.calm
            elif row - told > shape.rest or decades >= told_decades + shape.far_rarer:
                open_to, told, told_decades = row + shape.calm, row, decades
                begun.append(row)
        return begun

    def _rarest(self, shape: Shape) -> list[Rare]:
        """Of each row that is rare in some statistic, the rarest."""
        names = (*map(str, shape.scales), *shape.others)
        key = names, shape.season, shape.tail, shape.bins_per_e
        if key not in self._merged:
            rarest: dict[int, Rare] = {}
            for name in names:
                for rare in self._ranked(name, shape):
                    rarest[rare.row] = max(rarest.get(rare.row, rare), rare)
            self._merged[key] = [rarest[row] for row in sorted(rarest)]
        return self._merged[key]

    def _ranked(self, statistic: str, shape: Shape) -> list[Rare]:
        key = statistic, shape.season, shape.tail, shape.bins_per_e
        if key not in self._known:
            sizes = self._sizes(statistic, season=shape.season)
            self._known[key] = _ranked(sizes, self._first, shape.tail, shape.bins_per_e)
        return self._known[key]

    def _forecast(self, settings: Settings) -> None:
        """The errors of the model, and those of its level alone."""
        model = ValueModel()
        for row, (time, value) in enumerate(zip(self.series.times, self.series.values, strict=True)):
            level = model.level
            forecast = model.learn(settings, time // settings.width, value)
            if forecast is not None and forecast.age >= settings.warmup:
                self._first = min(self._first, row)
                self._errors[True].append(value - forecast.value)
                self._errors[False].append(value - level)
                error = abs(value - forecast.value)
                self._relative.append(error / forecast.spread if forecast.spread else float(error != 0.0))

    def _sizes(self, statistic: str, *, season: bool) -> list[float]:
        if statistic == "relative":
            return self._relative
        if statistic == "rough":
            return self._roughness()
        if statistic == "stiff":
            return [1.0 / size for size in self._roughness()]
        scale, mean, sizes = int(statistic), 0.0, []
        for error in self._errors[season]:
            mean += (error - mean) / scale
            sizes.append(abs(mean))
        return sizes

    def _roughness(self) -> list[float]:
        values = self.series.values
        recent = usual = abs(values[self._first] - values[self._first - 1])
        sizes = []
        for row in range(self._first, len(values)):
            step = abs(values[row] - values[row - 1])
            recent += _RECENT * (step - recent)
            usual += _USUAL * (step - usual)
            sizes.append((recent / usual if usual else 1.0) + _STILL)
        return sizes


def _ranked(sizes: Sequence[float], first: int, share: float, per_e: float) -> list[Rare]:
    counts, top, rare = [0] * _PLACES, 0, []
    bins = round(_RANGE * per_e)
    for age, size in enumerate(sizes):
        place, decades = floor(log(size + _TINY) * per_e) + _PLACES // 2, 0.0
        lowest = _LOWEST + min(_LOWER * log10((age + 1) / _HISTORY), 0.0)
        if place > top:
            if age >= _LEARNED:
                decades = _beyond(counts, age, place, top, bins, share)
            top = place
        elif age >= _LEARNED and counts[place] < (age + 1) / 10**lowest:
            decades = log10((age + 1) / (sum(counts[place : top + 1]) + 1))
        counts[place] += 1
        if decades >= lowest:
            rare.append(Rare(first + age, age + 1, decades))
    return rare


def _beyond(counts: Sequence[int], age: int, place: int, top: int, bins: int, share: float) -> float:
    """How rare a size is that is beyond all others: the power law of the largest of them, continued."""
    begin, tail, excess, lowest = top + 1, 0, 0, top - bins + 1
    while tail < max(share * age, _FEWEST) and begin > lowest:
        begin -= 1
        excess += tail
        tail += counts[begin] if begin > lowest else sum(counts[: begin + 1])
    mean = excess / tail + 0.5
    return max((place - begin) / mean / _LN10 + log10(age / tail), log10(age + 1))
