"""The Numenta Anomaly Benchmark: labelled series replayed as streams, with one set of parameters for all.

Each series is judged row by row, with nothing known of what comes behind the row. Beside the detector stands
one that knows nothing of seasons and reports values far from a sliding mean.

The score of the default says how well it fits these series. What to expect of others is the nested score: a
category is judged with the parameters, all that shape the model, that are best for the other categories; a
file with those that are best for the other files. The validated score chooses the sensitivity alone so.
Generated series with known answers say what kinds of anomaly are found.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from benchmarks import labelled, nested, results
from benchmarks.rarities import Shape
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
    result = {
        "quick": quick,
        "score": overall,
        **_validated(everything, quick=quick),
        "score_without_each_category": {
            name: _overall(
                [part for other in categories if other != name for part in categories[other]], "zeitgeist"
            )
            for name in by_category
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


def _validated(everything: Sequence[nab.Series], *, quick: bool) -> dict[str, Any]:
    """The scores with parameters that are chosen without the series that is scored, and the ablation."""
    names = [series.name for series in everything]
    categories = [name.split("/")[0] for name in names]
    windows = [len(series.windows) for series in everything]
    grids = [nested.grid(0, 6)] if quick else [nested.grid(number) for number in range(nested.GRIDS)]
    changed = nested.changed(quick)
    shapes = [Shape(), *itertools.chain(*grids, *changed.values())]
    points = nested.earned(SETTINGS, everything, shapes)
    own = nested.choices(points, [Shape()])
    of_grids = [nested.choices(points, grid) for grid in grids]
    by_category = [nested.validated(choices, categories) for choices in of_grids]
    by_file = [nested.validated(choices, names) for choices in of_grids]
    found = nested.mean([got for got, _ in by_category])
    return {
        "validated_by_category": nested.normal(nested.validated(own, categories)[0], windows),
        "validated_by_file": nested.normal(nested.validated(own, names)[0], windows),
        "nested_by_category": nested.normal(found, windows),
        "nested_by_file": nested.normal(nested.mean([got for got, _ in by_file]), windows),
        "nested_error": nested.error(found, [0.0] * len(found), windows),
        "nested_of_each_grid": [nested.normal(got, windows) for got, _ in by_category],
        "nested": nested.by_category(found, windows, categories),
        "chosen": [
            {
                category: {**shape._asdict(), "sensitivity": level}
                for category, (shape, level) in chosen.items()
            }
            for _, chosen in by_category
        ],
        "ablation": nested.ablation(points, changed, windows, categories),
        "score_by_sensitivity": {
            level: nested.normal(of_series, windows) for level, of_series in points[Shape()].items()
        },
    }


def _microseconds(everything: Sequence[nab.Series]) -> float:
    """CPU time of a value, model and detector: the least of three passes over all series."""
    passes = []
    for _ in range(3):
        began = time.process_time()
        for series in everything:
            detect(SETTINGS, zip(series.times, series.values, strict=True))
        passes.append(time.process_time() - began)
    return 1e6 * min(passes) / sum(len(series.values) for series in everything)


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
    known = numpy.asarray(values)
    rows, odd = [], False
    for row in range(31, len(known)):
        window = known[max(row - _WINDOW, 0) : row]
        before, odd = odd, bool(abs(known[row] - window.mean()) > _FAR * window.std())
        if odd and not before:
            rows.append(row)
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
    rows = [
        [name, part["by_category"], part["difference"], part["error"], *part["categories"].values()]
        for name, part in result["ablation"].items()
    ]
    print(results.table(["ablation", "nested", "difference", "its error", *result["categories"]], rows))
    near = f"standard error {result['nested_error']:.1f}, {len(result['chosen'])} grids"
    print(f"nested by category {result['nested_by_category']:.1f} ({near})")
    print(f"nested by file {result['nested_by_file']:.1f}")
    score = result["validated_by_category"]
    goals = f"goal {_GOAL:.0f}, aim {_AIM:.0f}"
    print(f"{results.verdict(score >= _GOAL)}  validated by category {score:.1f}; {goals}")
