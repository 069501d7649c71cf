"""The Numenta Anomaly Benchmark: labelled series replayed as streams, with one set of parameters for all.

Each series is judged row by row, with nothing known of what comes behind the row. Beside the detector stands
one that knows nothing of seasons and reports values far from a sliding mean.

The score of the default says how well it fits these series. What to expect of others is the validated score:
a category is judged with the sensitivity that is best for the other categories, a file with the one that is
best for the other files. Generated series with known answers say what kinds of anomaly are found.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import labelled, results
from millwheel.apps.zeitgeist import nab
from millwheel.apps.zeitgeist.offline import detect
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.time import MINUTE, SECOND
from tests.servers.processes import Unavailable

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "nab"
SETTINGS = Settings(kind="values", width=SECOND)
"""Of all series. A bucket is a row: none has two in a second."""
GENERATED = Settings(kind="values", width=5 * MINUTE)
_GOAL, _AIM = 65.0, 70.0  # of the score that is validated by category
LEVELS = tuple(level / 10 for level in range(22, 35))  # what is chosen from, with the neighbours' mean
_WINDOW, _FAR = 300, 5.0  # of the sliding mean: rows, and standard deviations


def run(*, quick: bool = False) -> dict[str, Any]:
    """Scores every series, prints a table, and writes the artifacts; `Unavailable` without the data."""
    if not DATA.is_dir():
        raise Unavailable("the series are not there: put the benchmark's folder at ../shared/data/nab")
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
    levels = _by_level(everything)
    result = {
        "quick": quick,
        "score": overall,
        "validated_by_category": validated(levels, [name.split("/")[0] for name in scores]),
        "validated_by_file": validated(levels, list(scores)),
        "score_without_each_category": {
            name: _overall(
                [part for other in categories if other != name for part in categories[other]], "zeitgeist"
            )
            for name in by_category
        },
        "score_by_sensitivity": {
            level: _normal([points[level] for points, _ in levels.values()], levels) for level in LEVELS
        },
        "generated": _generated(),
        "microseconds_a_value": _microseconds(everything),
        "sliding_mean": sliding,
        "categories": by_category,
        "series": scores,
    }
    label = results.name("nab", quick=quick)
    results.save(label, result)
    _print(result)
    groups = ["all", *by_category]
    from benchmarks import chart  # here: the tests of the score need no charts

    chart.bars(
        results.artifact(f"{label}.png"),
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


Levels = dict[str, tuple[dict[float, float], int]]
"""By series: what each sensitivity earns, and the number of windows."""


def _by_level(everything: Sequence[nab.Series]) -> Levels:
    levels: Levels = {}
    for series in everything:
        points = {}
        for level in LEVELS:
            found = detect(
                dataclasses.replace(SETTINGS, sensitivity=level),
                zip(series.times, series.values, strict=True),
            )
            points[level] = nab.score(found, series.windows, series.probation)
        levels[series.name] = points, len(series.windows)
    return levels


def _microseconds(everything: Sequence[nab.Series]) -> float:
    """CPU time of a value, model and detector: the least of three passes over all series."""
    passes = []
    for _ in range(3):
        began = time.process_time()
        for series in everything:
            detect(SETTINGS, zip(series.times, series.values, strict=True))
        passes.append(time.process_time() - began)
    return 1e6 * min(passes) / sum(len(series.values) for series in everything)


def _normal(points: Sequence[float], levels: Levels) -> float:
    return nab.normalise(sum(points), sum(windows for _, windows in levels.values()))


def validated(levels: Levels, groups: Sequence[str]) -> float:
    """The score of each group with the sensitivity that is best for all others.

    What one sensitivity earns is the mean with its two neighbours: a best by luck is no choice.
    """
    inner = range(1, len(LEVELS) - 1)

    def smooth(points: dict[float, float], at: int) -> float:
        return statistics.fmean(points[LEVELS[near]] for near in (at - 1, at, at + 1))

    by_group = list(zip(groups, (points for points, _ in levels.values()), strict=True))
    total = []
    for group in dict.fromkeys(groups):
        others = [points for name, points in by_group if name != group]
        best = max(inner, key=lambda at: sum(smooth(points, at) for points in others))
        total += [smooth(points, best) for name, points in by_group if name == group]
    return _normal(total, levels)


def _generated() -> dict[str, dict[str, float]]:
    """By kind: the share of anomalies told in time, and false alarms in a thousand rows."""
    told = {}
    for kind, parts in labelled.series().items():
        windows = found = false = rows = 0
        for series in parts:
            alarms = [
                row
                for row in detect(GENERATED, zip(series.times, series.values, strict=True))
                if row >= series.probation
            ]
            end = series.windows[0][0] if series.windows else len(series.values)
            windows += len(series.windows)
            found += sum(any(left <= row <= right for row in alarms) for left, right in series.windows)
            false += sum(row < end for row in alarms)
            rows += end - series.probation
        told[kind] = {"anomalies": windows, "found": found, "false_per_1000": 1_000 * false / rows}
    return told


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
    kinds = [[kind, *told.values()] for kind, told in result["generated"].items()]
    print(results.table(["generated", "anomalies", "found", "false in 1,000 rows"], kinds))
    print(f"fitted {result['score']:.1f}; validated by file {result['validated_by_file']:.1f}")
    print(f"{result['microseconds_a_value']:.1f} microseconds of CPU a value")
    score = result["validated_by_category"]
    goals = f"goal {_GOAL:.0f}, aim {_AIM:.0f}"
    print(f"{results.verdict(score >= _GOAL)}  validated by category {score:.1f}; {goals}")
