"""The pipeline of Fig. 1: records, Window Counter, Model Calculator, Spike and Dip Detector, anomalies."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.apps.zeitgeist.calculator import ModelCalculator
from millwheel.apps.zeitgeist.detector import Detector
from millwheel.apps.zeitgeist.measured import ValueCalculator, ValueDetector
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.window_counter import WindowCounter, WindowMean
from millwheel.model.injector import Injector
from millwheel.model.keys import KeyExtractor, by_key
from millwheel.model.pipeline import Pipeline


def count_anomalies(injector: Injector, keys: Mapping[str, KeyExtractor], settings: Settings) -> Pipeline:
    """Spikes and dips in how often keys occur; ``keys`` has a Window Counter by name for each way to count.

    ``anomalies`` gets one record for each anomaly, as it begins; ``episodes`` gets it again, with its end.
    Late records are dropped and counted.
    """
    p = Pipeline("zeitgeist")
    p.inject("records", injector)
    for name, key in keys.items():
        counter = WindowCounter(settings)
        p.add(counter, name=name, inputs={"records": key}, outputs=["windows", "partial"], late="drop")
    p.add(ModelCalculator(settings), inputs={"windows": by_key}, outputs=["models"])
    p.add(
        Detector(settings),
        inputs={"models": by_key, "windows": by_key, "partial": by_key},
        outputs=["anomalies", "episodes"],
    )
    return p


def value_anomalies(injector: Injector, key: KeyExtractor, field: str, settings: Settings) -> Pipeline:
    """Anomalies in what keys measure: ``field`` is a record's number, a bucket has the mean of them."""
    p = Pipeline("zeitgeist")
    p.inject("records", injector)
    p.add(WindowMean(settings, field), inputs={"records": key}, outputs=["windows"], late="drop")
    p.add(ValueCalculator(settings), inputs={"windows": by_key}, outputs=["models"])
    p.add(
        ValueDetector(settings),
        inputs={"models": by_key, "windows": by_key},
        outputs=["anomalies", "episodes"],
    )
    return p
