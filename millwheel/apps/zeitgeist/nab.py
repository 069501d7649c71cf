"""The scoring function of the Numenta Anomaly Benchmark, standard profile.

A detection in a labelled window earns up to 1, more the earlier it is; a window without one costs 1; a
detection outside costs up to 0.11, less the closer it is behind a window. Only the earliest, which is the
best, of a window's detections counts. The first rows of a series are not scored: a detector learns there.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from millwheel.model.time import SECOND

FALSE_POSITIVE = 0.11
FALSE_NEGATIVE = 1.0
_PROBATION_SHARE = 0.15
_PROBATION_ROWS = 5_000 * _PROBATION_SHARE  # at most
_FAR = 3.0  # widths of a window behind it: from there on a false alarm costs all of its weight

Window = tuple[int, int]
"""The first and the last row of a labelled window."""


@dataclass(frozen=True)
class Series:
    """A series of the benchmark: its rows in order, and the labelled windows."""

    name: str
    times: Sequence[int]
    values: Sequence[float]
    windows: Sequence[Window]

    @property
    def probation(self) -> int:
        """How many rows a detector may learn from before it is scored."""
        return probation(len(self.values))


def probation(rows: int) -> int:
    """The first 15% of the rows, at most 750.

    >>> probation(1_000), probation(100_000)
    (150, 750)
    """
    return int(min(_PROBATION_SHARE * rows, _PROBATION_ROWS))


def load(folder: Path) -> list[Series]:
    """Every series below a folder that has labels in its ``windows.json``."""
    labels = json.loads((folder / "windows.json").read_text())
    series = []
    for name, windows in sorted(labels.items()):
        with (folder / name).open(newline="") as file:
            rows = [(_time(row["timestamp"]), float(row["value"])) for row in csv.DictReader(file)]
        times = [time for time, _ in rows]
        bounds = [_rows(times, _time(first), _time(last)) for first, last in windows]
        series.append(Series(name, times, [value for _, value in rows], bounds))
    return series


def _time(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp() * SECOND)


def _rows(times: Sequence[int], first: int, last: int) -> Window:
    inside = [row for row, time in enumerate(times) if first <= time <= last]
    return inside[0], inside[-1]


def score(detections: Iterable[int], windows: Sequence[Window], first: int = 0) -> float:
    """What detections at some rows earn, those before row ``first`` left out.

    >>> score([10], [(10, 19)]), score([], [(10, 19)])
    (1.0, -1.0)
    >>> round(score([5, 12, 15], [(10, 19)]), 3)  # a false alarm, and a detection somewhat late
    0.867
    """
    total = 0.0
    best: dict[Window, float] = {}
    for row in detections:
        if row < first:
            continue
        window = next((window for window in windows if window[0] <= row <= window[1]), None)
        if window is None:
            total -= FALSE_POSITIVE * _cost(row, windows)
        else:
            left, right = window
            earned = _sigmoid(-(right - row + 1) / (right - left + 1)) / _sigmoid(-1.0)
            best[window] = max(best.get(window, earned), earned)
    return total + sum(best.values()) - FALSE_NEGATIVE * (len(windows) - len(best))


def normalise(total: float, windows: int) -> float:
    """A sum of scores from 0 (nothing is reported) to 100 (all is found at once).

    >>> normalise(-4.0, 4), normalise(4.0, 4)
    (0.0, 100.0)
    """
    return 100.0 * (total + FALSE_NEGATIVE * windows) / (windows * (1.0 + FALSE_NEGATIVE))


def _cost(row: int, windows: Sequence[Window]) -> float:
    """The share of its weight that a false alarm costs."""
    before = [window for window in windows if window[1] < row]
    if not before:
        return 1.0
    left, right = max(before, key=lambda window: window[1])
    return -_sigmoid((row - right) / max(right - left, 1))


def _sigmoid(position: float) -> float:
    """The score of a position: 1 at a window's begin (-1), 0 at its end (0), then -1."""
    return -1.0 if position > _FAR else 2.0 / (1.0 + math.exp(5.0 * position)) - 1.0
