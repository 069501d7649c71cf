"""Planted spikes and dips of known size in counts: how many are found, how soon, and how many false alarms.

The counts are generated queries with a daily cycle, by how frequent a query is, and a real day of edits of
Wikipedia by language. Beside the detector stand a windowed Gaussian and the robust seasonal residual of
Twitter's ADVec (the median of the same time of day before, in median absolute deviations). Both get the
threshold that gives them as many false alarms as the detector has on the same counts.
"""

from __future__ import annotations

import bisect
import gzip
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import millwheel as mw
from benchmarks import results
from benchmarks.wikipedia import DATA
from millwheel.apps.zeitgeist.calculator import ModelCalculator
from millwheel.apps.zeitgeist.detector import Detector
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.time import DAY, MINUTE

_RATES = (0.2, 1.0, 5.0, 20.0, 100.0)  # records a bucket: from a rare key to a busy one
_SIZES = {"x 0": 0.0, "x 0.5": 0.5, "x 1.5": 1.5, "x 2": 2.0, "x 3": 3.0, "x 10": 10.0}
_LENGTH = 12  # buckets: an hour
_RARE = (0.2, 1.0)  # an hour of nothing is usual for such keys, so outages are planted too:
_OUTAGES = {f"x 0 for {length}": length for length in (48, 96, 144, 288)}
_DAYS = 4
_LEARNED = 0.5  # of the time: an anomaly is planted behind it
_SWING = 0.5  # of the daily cycle
_REST = 12  # buckets: alarms that are closer are one

Alarm = tuple[int, int]
"""(the bucket in which it was told, 1 for a spike and -1 for a dip)"""
Scores = Callable[[Sequence[int], int], list[float]]
"""How odd each bucket is, with its sign; the second argument is the number of buckets in a day."""


@dataclass(frozen=True)
class Case:
    """The counts of a key, with an anomaly from a bucket on."""

    source: str
    kind: str
    counts: tuple[int, ...]
    begin: int
    length: int = _LENGTH

    @property
    def side(self) -> int:
        """1 for a spike, -1 for a dip, 0 where nothing is planted."""
        size = _size(self.kind)
        return (size > 1.0) - (size < 1.0)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Plants, detects, compares; prints a table and writes the artifacts."""
    repeats = 3 if quick else 20
    settings = Settings(width=5 * MINUTE)
    cases = [
        _generated(rate, kind, seed)
        for rate in _RATES
        for kind in (*_SIZES, *(_OUTAGES if rate in _RARE else ()), "none")
        for seed in range(repeats)
    ]
    result = {"generated": _compare(cases, settings)}
    if DATA.is_dir():
        result["wikipedia"] = _compare(_edits(repeats), Settings(width=5 * MINUTE))
    results.save(results.name("planted", quick=quick), result)
    for source, part in result.items():
        _print(source, part)
    return result


def _generated(rate: float, kind: str, seed: int) -> Case:
    rng = random.Random(f"{rate} {kind} {seed}")
    a_day = DAY // (5 * MINUTE)
    buckets = _DAYS * a_day
    length = _OUTAGES.get(kind, _LENGTH)
    begin = rng.randrange(int(buckets * _LEARNED), buckets - length - 2 * _LENGTH)
    peak = rng.randrange(a_day)
    usual = [rate * (1 + _SWING * math.cos(2 * math.pi * (n - peak) / a_day)) for n in range(buckets)]
    return Case(f"{rate:g} a bucket", kind, _planted(rng, usual, kind, begin, length), begin, length)


def _planted(
    rng: random.Random, usual: Sequence[float], kind: str, begin: int, length: int = _LENGTH
) -> tuple[int, ...]:
    size = _size(kind)
    return tuple(
        _poisson(rng, rate * (size if begin <= n < begin + length else 1.0)) for n, rate in enumerate(usual)
    )


def _size(kind: str) -> float:
    """What the usual counts are multiplied by."""
    return 0.0 if kind in _OUTAGES else _SIZES.get(kind, 1.0)


def _edits(repeats: int) -> list[Case]:
    """The edits of a day by language; records are taken out or repeated where an anomaly is planted."""
    by_language: dict[str, Counter[int]] = {}
    for path in sorted(DATA.glob("*.json.gz")):
        with gzip.open(path, "rt") as lines:
            for line in lines:
                edit = json.loads(line)
                moment = datetime.fromisoformat(edit["time"])
                bucket = (moment.hour * 60 + moment.minute) // 5
                by_language.setdefault(edit["channel"], Counter())[bucket] += 1
    cases = []
    for language, counts in by_language.items():
        series = [counts[bucket] for bucket in range(288)]
        if sum(series) < 288:
            continue
        for kind in (*_SIZES, "none"):
            for seed in range(max(repeats // 4, 1)):
                rng = random.Random(f"{language} {kind} {seed}")
                begin = rng.randrange(144, 288 - 2 * _LENGTH)
                usual = [float(count) for count in series]
                odd = _planted(rng, usual, kind, begin)
                planted = [
                    odd[n] if begin <= n < begin + _LENGTH else count for n, count in enumerate(series)
                ]
                source = "busy" if sum(series) >= 5 * 288 else "quiet"
                cases.append(Case(f"{source} languages", kind, tuple(planted), begin))
    return cases


def _compare(cases: Sequence[Case], settings: Settings) -> dict[str, Any]:
    found = {"zeitgeist": judge(cases, zeitgeist(cases, settings))}
    allowed = found["zeitgeist"]["false"]
    a_day = settings.buckets_a_day
    for name, scores in (("windowed Gaussian", gaussian), ("ADVec", advec)):
        odd = [scores(case.counts, a_day) for case in cases]
        found[name] = judge(cases, _as_many_false(cases, odd, allowed))
    return found


def zeitgeist(cases: Sequence[Case], settings: Settings) -> list[list[Alarm]]:
    """The pipeline of Fig. 1 behind the Window Counter, in the harness: all cases are keys of one run."""
    p = mw.Pipeline("planted")
    p.inject("windows", mw.injectors.Records([]))
    p.add(ModelCalculator(settings), inputs={"windows": mw.by_key}, outputs=["models"])
    p.add(
        Detector(settings),
        inputs={"models": mw.by_key, "windows": mw.by_key},
        outputs=["anomalies", "episodes"],
    )
    h = mw.testing.Harness(p)
    width = settings.width
    for bucket in range(len(cases[0].counts)):
        with h.epoch():
            for key, case in enumerate(cases):
                if case.counts[bucket]:
                    value, time = [bucket, case.counts[bucket]], (bucket + 1) * width - 1
                    h.send("windows", value, timestamp=time, key=str(key))
            h.advance("windows", (bucket + 1) * width)
    alarms: list[list[Alarm]] = [[] for _ in cases]
    for record in h.output("anomalies"):
        told = record.value
        side = 1 if told["kind"] == "spike" else -1
        alarms[int(told["key"])].append(((told["found"] - 1) // width, side))
    return alarms


def gaussian(counts: Sequence[int], a_day: int) -> list[float]:
    scores, total, squares = [], 0.0, 0.0
    for n, count in enumerate(counts):
        size = min(n, a_day)
        if n > a_day:
            gone = counts[n - a_day - 1]
            total, squares = total - gone, squares - gone * gone
        mean = total / size if size else 0.0
        deviation = math.sqrt(max(squares / size - mean * mean, 0.0)) if size else 0.0
        scores.append((count - mean) / (deviation + 0.5) if n >= 24 else 0.0)
        total, squares = total + count, squares + count * count
    return scores


def advec(counts: Sequence[int], a_day: int) -> list[float]:
    scores: list[float] = []
    recent: list[float] = []
    ordered: list[float] = []
    for n, count in enumerate(counts):
        around = [
            counts[near]
            for day in range(1, n // a_day + 1)
            for near in range(n - day * a_day - 3, n - day * a_day + 4)
            if 0 <= near < n
        ] or list(counts[max(n - 24, 0) : n])
        usual = statistics.median(around) if around else 0.0
        residual = count - usual
        deviation = 1.4826 * ordered[len(ordered) // 2] if ordered else 0.0
        scores.append(residual / (deviation + 0.5) if n >= 24 else 0.0)
        recent.append(abs(residual))
        bisect.insort(ordered, abs(residual))
        if len(recent) > a_day:
            del ordered[bisect.bisect_left(ordered, recent.pop(0))]
    return scores


def _as_many_false(cases: Sequence[Case], odd: Sequence[Sequence[float]], allowed: int) -> list[list[Alarm]]:
    """Alarms at the lowest threshold with no more false ones than allowed."""
    low, high = 0.0, 1_000.0
    for _ in range(40):
        middle = (low + high) / 2
        if judge(cases, [_alarms(scores, middle) for scores in odd])["false"] > allowed:
            low = middle
        else:
            high = middle
    return [_alarms(scores, high) for scores in odd]


def _alarms(scores: Sequence[float], threshold: float) -> list[Alarm]:
    alarms: list[Alarm] = []
    for n, score in enumerate(scores):
        if abs(score) >= threshold and (not alarms or n - alarms[-1][0] > _REST):
            alarms.append((n, 1 if score > 0 else -1))
    return alarms


def judge(cases: Sequence[Case], alarms: Sequence[Sequence[Alarm]]) -> dict[str, Any]:
    """By source and size: found, of how many, the median delay in buckets; and false alarms in all."""
    told: dict[tuple[str, str], list[int | None]] = {}
    false = 0
    for case, of_case in zip(cases, alarms, strict=True):
        inside = [
            row - case.begin
            for row, side in of_case
            if case.side and side == case.side and case.begin <= row <= case.begin + case.length
        ]
        if case.side:
            told.setdefault((case.source, case.kind), []).append(min(inside, default=None))
        near = case.length + 2 * _LENGTH if case.side else 0
        false += sum(not case.begin <= row < case.begin + near for row, _ in of_case)
    found = sum(delay is not None for delays in told.values() for delay in delays)
    return {
        "false": false,
        "precision": found / max(found + false, 1),
        "recall": found / max(sum(map(len, told.values())), 1),
        "buckets": sum(len(case.counts) for case in cases),
        "sizes": [
            {
                "source": source,
                "size": kind,
                "planted": len(delays),
                "found": sum(delay is not None for delay in delays),
                "delay": statistics.median([delay for delay in delays if delay is not None])
                if any(delay is not None for delay in delays)
                else None,
            }
            for (source, kind), delays in told.items()
        ],
    }


def _poisson(rng: random.Random, mean: float) -> int:
    if mean > 50.0:
        return max(round(rng.gauss(mean, math.sqrt(mean))), 0)
    limit, number, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        number += 1
        product *= rng.random()
    return number


def said(source: str, found: dict[str, Any]) -> str:
    """False alarms, precision and recall of each, in a sentence."""
    each = (
        f"{name} {part['false']} (precision {part['precision']:.2f}, recall {part['recall']:.2f})"
        for name, part in found.items()
    )
    return f"{source}, false alarms in {found['zeitgeist']['buckets']:,} buckets: {', '.join(each)}"


def rows(found: dict[str, Any]) -> list[list[object]]:
    """By source and size: how many each found, and after how many buckets."""
    table = []
    for number, size in enumerate(found["zeitgeist"]["sizes"]):
        row: list[object] = [size["source"], size["size"], size["planted"]]
        for part in found.values():
            told = part["sizes"][number]
            row += [told["found"], "-" if told["delay"] is None else f"{told['delay']:.0f}"]
        table.append(row)
    return table


HEADS = ["keys", "size", "planted", "zeitgeist", "delay", "Gaussian", "delay", "ADVec", "delay"]


def _print(source: str, found: dict[str, Any]) -> None:
    print(said(source, found))
    print(results.table(HEADS, rows(found)))
