"""The Numenta Anomaly Benchmark: labelled series replayed as streams, with one set of parameters for all.

Each series is judged row by row, with nothing known of what comes behind the row. Beside the detector stands
one that knows nothing of seasons and reports values far from a sliding mean.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from millwheel.apps.zeitgeist import nab
from millwheel.apps.zeitgeist.offline import detect
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.time import SECOND

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "nab"
SETTINGS = Settings(kind="values", width=SECOND)
"""Of all series. A bucket is a row: none has two in a second."""
_GOAL, _AIM = 60.0, 70.0
_LEVELS = (3.0, 3.5, 4.5, 5.0)  # other thresholds: what a user who turns the knob may expect
_WINDOW, _FAR = 300, 5.0  # of the sliding mean: rows, and standard deviations


def run(*, quick: bool = False) -> dict[str, Any]:
    """Scores every series, prints a table, and writes the artifacts; says so where the data is not there."""
    if not DATA.is_dir():
        print("The series are not there: put the benchmark's folder at ../shared/data/nab")
        return {}
    everything = nab.load(DATA)
    scores = {series.name: _score(series) for series in everything}
    categories: dict[str, list[dict[str, Any]]] = {}
    for name, part in scores.items():
        categories.setdefault(name.split("/")[0], []).append(part)
    overall = _overall(list(scores.values()), "zeitgeist")
    sliding = _overall(list(scores.values()), "sliding")
    by_category = {
        name: _overall(parts, "zeitgeist") for name, parts in categories.items() if _windows(parts)
    }
    result = {
        "score": overall,
        "score_without_each_category": {
            name: _overall(
                [part for other in categories if other != name for part in categories[other]], "zeitgeist"
            )
            for name in by_category
        },
        "score_by_sensitivity": {} if quick else {level: _at(everything, level) for level in _LEVELS},
        "sliding_mean": sliding,
        "categories": by_category,
        "series": scores,
    }
    results.save("nab", result)
    _print(result)
    groups = ["all", *by_category]
    from benchmarks import chart  # here: the tests of the score need no charts

    chart.bars(
        results.artifact("nab.png"),
        "NAB score, standard profile (0: nothing is told, 100: all at once)",
        [group.removeprefix("real").removeprefix("artificial") or group for group in groups],
        {"zeitgeist": [overall, *by_category.values()]},
    )
    return result


def _score(series: nab.Series) -> dict[str, Any]:
    found = detect(SETTINGS, zip(series.times, series.values, strict=True))
    told = [row for row in found if row >= series.probation]
    inside = [any(left <= row <= right for row in told) for left, right in series.windows]
    false = [row for row in told if not any(left <= row <= right for left, right in series.windows)]
    return {
        "rows": len(series.values),
        "windows": len(series.windows),
        "found": sum(inside),
        "false": len(false),
        "zeitgeist": nab.score(found, series.windows, series.probation),
        "sliding": nab.score(_sliding(series.values), series.windows, series.probation),
    }


def _at(everything: Sequence[nab.Series], sensitivity: float) -> float:
    settings = dataclasses.replace(SETTINGS, sensitivity=sensitivity)
    total = 0.0
    for series in everything:
        found = detect(settings, zip(series.times, series.values, strict=True))
        total += nab.score(found, series.windows, series.probation)
    return nab.normalise(total, sum(len(series.windows) for series in everything))


def _sliding(values: Sequence[float]) -> list[int]:
    """Values far from the mean of those before; told once until they are calm again."""
    window: deque[float] = deque(maxlen=_WINDOW)
    rows, odd = [], False
    for row, value in enumerate(values):
        before, odd = odd, False
        if len(window) > 30:
            odd = abs(value - statistics.fmean(window)) > _FAR * statistics.pstdev(window)
        if odd and not before:
            rows.append(row)
        window.append(value)
    return rows


def _windows(parts: Sequence[dict[str, Any]]) -> int:
    return sum(part["windows"] for part in parts)


def _overall(parts: Sequence[dict[str, Any]], detector: str) -> float:
    return nab.normalise(sum(part[detector] for part in parts), _windows(parts))


def _print(result: dict[str, Any]) -> None:
    rows = []
    for name, part in result["series"].items():
        score = nab.normalise(part["zeitgeist"], part["windows"]) if part["windows"] else "-"
        rows.append([name, part["windows"], part["found"], part["false"], f"{part['zeitgeist']:.2f}", score])
    print(results.table(["series", "windows", "found", "false alarms", "points", "score"], rows))
    for name, score in result["categories"].items():
        left = result["score_without_each_category"][name]
        print(f"{name}: {score:.1f} (all but it: {left:.1f})")
    for level, score in result["score_by_sensitivity"].items():
        print(f"sensitivity {level}: {score:.1f}")
    print(f"a sliding mean, for comparison: {result['sliding_mean']:.1f}")
    score = result["score"]
    print(f"{results.verdict(score >= _GOAL)}  overall {score:.1f}; goal {_GOAL:.0f}, aim {_AIM:.0f}")
