"""Generated series with known answers: what a detector must find, and what it must leave alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from millwheel.apps.zeitgeist.nab import Series
from millwheel.model.time import MINUTE

_STEP = 5 * MINUTE
_A_DAY = 288
_DAYS = 14
_WINDOW = 60  # rows behind its beginning in which an anomaly must be told
_SEEDS = 8

Value = Callable[[random.Random, int], float]


def series(kinds: Sequence[str] = ()) -> dict[str, list[Series]]:
    """By kind, or those named, some series: seven days to learn from, then an anomaly at a random row."""
    return {kind: [_make(kind, seed) for seed in range(_SEEDS)] for kind in kinds or (*_ODD, *_CALM)}


def _make(kind: str, seed: int) -> Series:
    rng = random.Random(f"{kind} {seed}")
    begin = rng.randrange(7 * _A_DAY, (_DAYS - 2) * _A_DAY)
    rows = range(_DAYS * _A_DAY)
    if kind in _CALM:
        values: Sequence[float] = [_CALM[kind](rng, row) for row in rows]
        windows = []
    else:
        usual, odd, length = _ODD[kind]
        values = [(odd if begin <= row < begin + length else usual)(rng, row) for row in rows]
        windows = [(begin, begin + _WINDOW - 1)]
    times = [row * _STEP for row in rows]
    if kind == "values are missing":
        kept = [row for row in rows if not begin - _A_DAY <= row < begin - _A_DAY // 2]
        times, values = [times[row] for row in kept], [values[row] for row in kept]
        windows = []
    return Series(f"{kind} {seed}", times, values, windows)


def _day(row: int) -> float:
    return 100 + 30 * math.sin(2 * math.pi * row / _A_DAY)


def _daily(rng: random.Random, row: int) -> float:
    return _day(row) + rng.gauss(0, 3)


def _flat(rng: random.Random, row: int) -> float:
    return 100 + rng.gauss(0, 3)


def _rough(rng: random.Random, row: int) -> float:
    return 20 + rng.expovariate(0.2)


_FOR_GOOD = _DAYS * _A_DAY
_ODD: dict[str, tuple[Value, Value, int]] = {
    "a level shifts by four deviations": (_flat, lambda rng, row: _flat(rng, row) + 12, _FOR_GOOD),
    "a daily cycle shifts up": (_daily, lambda rng, row: _daily(rng, row) + 30, _FOR_GOOD),
    "values become four times as rough": (_flat, lambda rng, row: 100 + rng.gauss(0, 12), _FOR_GOOD),
    "values stand still": (_flat, lambda rng, row: 100.0, 60),
    "the daily cycle is lost": (_daily, lambda rng, row: 60 + rng.gauss(0, 3), _A_DAY),
    "a spike of ten deviations": (_flat, lambda rng, row: 130 + rng.gauss(0, 3), 2),
    "a dip of ten deviations": (_flat, lambda rng, row: 70 + rng.gauss(0, 3), 2),
    "a spike in a rough series": (_rough, lambda rng, row: 120 + rng.expovariate(0.2), 2),
}
"""What there is usually, what there is then, and for how many rows."""
_CALM: dict[str, Value] = {
    "noise": _flat,
    "noise with a long tail": _rough,
    "a daily cycle": _daily,
    "values are missing": _daily,
    "a slow drift": lambda rng, row: 100 + row / 200 + rng.gauss(0, 3),
}
