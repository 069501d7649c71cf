"""Measured values: the pipeline and the plain model agree, and what is odd for the key is found."""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.apps.zeitgeist.offline import detect
from millwheel.apps.zeitgeist.packed import Packed
from millwheel.apps.zeitgeist.pipeline import value_anomalies
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.surprise import Surprise
from millwheel.apps.zeitgeist.value_model import ValueModel
from millwheel.cli import zeitgeist_command
from millwheel.model.time import DAY, HOUR, MINUTE

SETTINGS = Settings(kind="values", width=5 * MINUTE)
A_DAY = DAY // SETTINGS.width

Series = list[tuple[int, float]]


def series(days: int, value: Callable[[int], float], seed: int = 1) -> Series:
    """A value for each bucket, with some noise."""
    rng = random.Random(seed)
    return [(n * SETTINGS.width, value(n) + rng.gauss(0, 1)) for n in range(days * A_DAY)]


def daily(n: int) -> float:
    return 100 + 30 * math.sin(2 * math.pi * n / A_DAY)


def test_noise_around_a_daily_cycle_gives_a_false_alarm_in_a_thousand_buckets_at_most() -> None:
    alarms = [row for seed in range(10) for row in detect(SETTINGS, series(7, daily, seed))]
    assert len(alarms) * 1_000 <= 10 * 7 * A_DAY


def test_with_less_sensitivity_noise_is_no_anomaly() -> None:
    settings = dataclasses.replace(SETTINGS, sensitivity=3.5)
    assert [row for seed in range(10) for row in detect(settings, series(7, daily, seed))] == []


@pytest.mark.parametrize(
    ("odd", "begin", "length"),
    [
        (lambda n: daily(n) + 40, 7 * A_DAY, 3),
        (lambda n: daily(n) - 40, 7 * A_DAY + 70, 3),
        (lambda n: 100.0, 8 * A_DAY + 40, 60),
        (lambda n: daily(n) + 12 * (-1) ** n, 8 * A_DAY, 40),
    ],
    ids=["spike", "dip", "the cycle is missing", "much rougher"],
)
def test_what_is_odd_for_the_key_is_told_once(odd: Callable[[int], float], begin: int, length: int) -> None:
    def value(n: int) -> float:
        return odd(n) if begin <= n < begin + length else daily(n)

    found = detect(SETTINGS, series(10, value))
    assert len([row for row in found if begin <= row <= begin + length]) == 1


def test_an_error_that_is_usual_for_a_rough_hour_is_odd_in_a_calm_one() -> None:
    rng = random.Random(4)

    def value(n: int) -> float:
        rough = n % A_DAY >= A_DAY // 2
        return rng.gauss(100, 20 if rough else 1) + (60 if n in (calm_hour, rough_hour) else 0)

    calm_hour, rough_hour = 8 * A_DAY + A_DAY // 4, 9 * A_DAY + 3 * A_DAY // 4
    found = detect(SETTINGS, series(10, value))
    assert calm_hour in found
    assert rough_hour not in found


def test_the_pipeline_tells_what_the_plain_model_tells() -> None:
    settings = Settings(kind="values", width=MINUTE, day=3 * HOUR)
    rng = random.Random(2)
    rows = [(n * MINUTE, rng.gauss(20, 2) + (90 if n == 600 else 0)) for n in range(700)]
    h = mw.testing.Harness(value_anomalies(mw.injectors.Records([]), mw.by("host"), "load", settings))
    for first in range(0, len(rows), 7):
        with h.epoch():
            for time, value in reversed(rows[first : first + 7]):
                h.send("records", {"host": "a", "load": value}, timestamp=time)
            h.advance("records", rows[first][0])
        if first % 91 == 0:
            h.crash()
    h.drain()
    told = [record.value["start"] // MINUTE for record in h.output("anomalies")]
    assert told == detect(settings, rows)
    assert 600 in told


def test_the_state_of_a_key_does_not_grow() -> None:
    model, surprise = ValueModel(), Surprise()
    sizes = []
    for n, (time, value) in enumerate(series(40, daily)):
        bucket = time // SETTINGS.width
        surprise.judge(SETTINGS, model.learn(SETTINGS, bucket, value), bucket, value)
        if n % (10 * A_DAY) == A_DAY:
            sizes.append(len(Packed(ValueModel).encode(model)) + len(Packed(Surprise).encode(surprise)))
    assert max(sizes) < 1_500
    assert sizes[-1] <= sizes[0] + 20


def test_a_state_survives_its_bytes() -> None:
    model = ValueModel()
    for time, value in series(2, daily):
        model.learn(SETTINGS, time // SETTINGS.width, value)
    codec = Packed(ValueModel)
    again = codec.decode(codec.encode(model))
    bucket = 3 * A_DAY
    assert again.learn(SETTINGS, bucket, 1.0) == model.learn(SETTINGS, bucket, 1.0)


def test_what_cannot_be_compared_is_diverted_and_the_rest_goes_on() -> None:
    p = value_anomalies(mw.injectors.Records([]), mw.by("host"), "load", SETTINGS, errors="divert")
    h = mw.testing.Harness(p)
    for value in ("nan", "inf", "", "2.5", 3):
        h.send("records", {"host": "a", "load": value}, timestamp=0)
    h.drain()
    assert [record.value for record in h.output("windows")] == [[0, 2.75]]
    assert len(h.output("WindowMean.errors")) == 3


def test_of_several_metrics_an_empty_one_is_missing() -> None:
    p = value_anomalies(mw.injectors.Records([]), mw.by("host"), ["load", "heat"], SETTINGS)
    h = mw.testing.Harness(p)
    h.send("records", {"host": "a", "load": "", "heat": "7"}, timestamp=0)
    h.drain()
    assert [(record.key, record.value) for record in h.output("windows")] == [("a|heat", [0, 7.0])]


@pytest.mark.parametrize("fields", ["load.cpu", ["load.cpu"], ["load.cpu", "heat"]])
def test_a_metric_may_be_nested(fields: str | list[str]) -> None:
    p = value_anomalies(mw.injectors.Records([]), mw.by("host"), fields, SETTINGS)
    h = mw.testing.Harness(p)
    h.send("records", {"host": "a", "load": {"cpu": 3}}, timestamp=0)
    h.drain()
    key = "a" if isinstance(fields, str) else "a|load.cpu"
    assert [(record.key, record.value) for record in h.output("windows")] == [(key, [0, 3.0])]


def test_without_a_key_all_records_are_watched_together(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    zeitgeist_command.add_command(parser.add_subparsers())
    options = parser.parse_args(["zeitgeist", "x.csv", "--value", "v", "--out", str(tmp_path)])
    h = mw.testing.Harness(zeitgeist_command.pipeline(options))
    h.send("records", {"v": 7.0}, timestamp=0)
    h.drain()
    assert [(record.key, record.value) for record in h.output("windows")] == [("all", [0, 7.0])]
