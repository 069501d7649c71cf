"""Ranks of measured values: what is told is what a plain ranking of every size would tell."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterator

import pytest

from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.surprise import SENSITIVITY, Surprise
from millwheel.apps.zeitgeist.value_model import ValueForecast
from millwheel.model.time import MINUTE

SETTINGS = Settings(kind="values", width=5 * MINUTE, warmup=0)
BINS, PER_E, LEARNED, SPREAD = 44, 4.0, 30, 2.0


def plain(errors: list[float], values: list[float]) -> Iterator[float]:
    """The confidence of each bucket, from lists of all sizes: no bins, no shortcuts."""
    means, last, step, usual = [0.0] * 3, 0.0, 0.0, 0.0
    sizes: list[list[int]] = [[] for _ in range(6)]
    for age, (error, value) in enumerate(zip(errors, values, strict=True)):
        means = [mean + (error - mean) / scale for mean, scale in zip(means, (1, 8, 64), strict=True)]
        moved, last = abs(value - last), value
        if age == 0:
            step = usual = moved
        step += 0.06 * (moved - step)
        usual += 0.003 * (moved - usual)
        rough = (step / usual if usual else 1.0) + 0.01
        rarest = 0.0
        for known, size in zip(sizes, [*map(abs, means), abs(error) / SPREAD, rough, 1 / rough], strict=True):
            height = math.floor(math.log(size + 1e-12) * PER_E)
            if age >= LEARNED:
                rarest = max(rarest, rarity(known, height))
            known.append(height)
        yield rarest - (0.5 * math.log10((age + 1) / 1_000) if age + 1 >= 300 else 0.0)


def test_the_state_of_a_version_with_other_statistics_learns_anew() -> None:
    old = Surprise(age=900, means=[1.0] * 4, tops=[3] * 6, bins=array("f", [20.0] * 288), told=890)
    new = Surprise()
    rng = random.Random(5)
    for n in range(700):
        value = 90.0 if n == 600 else rng.gauss(0, 1)
        verdicts = [each.judge(SETTINGS, ValueForecast(0.0, n, SPREAD), n, value) for each in (old, new)]
        assert verdicts[0].calm == verdicts[1].calm
    assert (old.age, len(old.bins)) == (new.age, len(new.bins))


def rarity(known: list[int], height: int) -> float:
    age, top = len(known), max(known)
    height = max(height, top - BINS + 1)
    larger = sum(max(each, top - BINS + 1) >= height for each in known)
    if larger:
        return math.log10((age + 1) / (larger + 1))
    begin, tail = top + 1, 0
    while tail < max(0.025 * age, 3) and begin > top - BINS + 1:
        begin -= 1
        tail = sum(each >= begin for each in known)
    excess = sum(each - begin for each in known if each > begin)
    beyond = (height - begin) / (excess / tail + 0.5) / math.log(10) + math.log10(age / tail)
    return max(beyond, math.log10(age + 1))


@pytest.mark.parametrize(
    "value",
    [
        lambda rng, n: rng.gauss(0, 1) + (9 if n in (700, 701) else 0),
        lambda rng, n: rng.expovariate(1.0) ** 3,
        lambda rng, n: rng.gauss(0, 1 if n < 900 else 6),
        lambda rng, n: 0.0 if 1_200 < n < 1_300 else float(rng.randrange(5)),
    ],
    ids=["a spike", "a long tail", "rougher", "a few values"],
)
def test_what_is_told_has_the_confidence_of_a_plain_ranking(
    value: Callable[[random.Random, int], float],
) -> None:
    rng = random.Random(7)
    values = [value(rng, n) for n in range(1_500)]
    surprise, told = Surprise(), 0
    for n, (wanted, each) in enumerate(zip(plain(values, values), values, strict=True)):
        verdict = surprise.judge(SETTINGS, ValueForecast(0.0, n, SPREAD), n, each)
        assert verdict.calm == (wanted < SENSITIVITY)
        assert verdict.confidence == (0.0 if verdict.calm else pytest.approx(wanted))
        told += not verdict.calm
    assert told
