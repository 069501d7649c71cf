"""The pipeline of Fig. 1: Window Counter, Model Calculator, Detector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millwheel.apps.zeitgeist.calculator import ModelCalculator
from millwheel.apps.zeitgeist.detector import Detector
from millwheel.apps.zeitgeist.measured import ValueCalculator, ValueDetector
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.window_counter import WindowCounter, WindowMean
from millwheel.model.computation import Computation
from millwheel.model.injector import Errors, Injector
from millwheel.model.keys import KeyExtractor, by, by_key, field_of
from millwheel.model.record import Record
from millwheel.operators.builder import Pipeline

_METRIC, _MEASURED = "\u2063metric", "\u2063measured"  # fields of the pipeline's own: no input has them


def count_anomalies(
    injector: Injector,
    keys: Mapping[str, KeyExtractor],
    settings: Settings,
    *,
    errors: Errors = "stop",
    feedback: Injector | None = None,
) -> Pipeline:
    """Spikes and dips in counts; ``keys`` has a Window Counter by name for each.

    ``anomalies`` gets one record for each anomaly, as it begins; ``episodes`` gets it again, with its end.
    Late records are dropped and counted. ``errors="divert"`` sends records that cannot be counted to
    ``NAME.errors``. ``feedback`` names keys of which an anomaly was none.
    """
    p = Pipeline("zeitgeist")
    p.inject("records", injector)
    for name, key in keys.items():
        p.add(
            WindowCounter(settings),
            name=name,
            inputs={"records": key},
            outputs=["windows", "partial"],
            late="drop",
            errors=errors,
        )
    p.add(ModelCalculator(settings), inputs={"windows": by_key}, outputs=["models"])
    _detect(p, Detector(settings), ["models", "windows", "partial"], feedback)
    return p


def value_anomalies(
    injector: Injector,
    key: KeyExtractor,
    field: str | Sequence[str],
    settings: Settings,
    *,
    errors: Errors = "stop",
    feedback: Injector | None = None,
) -> Pipeline:
    """Anomalies of values: ``field`` is a record's number, a bucket has their mean.

    With several fields each is watched by itself, under the key ``KEY|FIELD``; a record need not have all.
    """
    p = Pipeline("zeitgeist")
    stream, extractor = "records", key
    records = p.inject("records", injector)
    if not isinstance(field, str):
        records.flat_map(Metrics(tuple(field))).named("metrics")
        stream, extractor, field = "metrics", MetricKey(key), _MEASURED
    p.add(
        WindowMean(settings, field),
        inputs={stream: extractor},
        outputs=["windows"],
        late="drop",
        errors=errors,
    )
    p.add(ValueCalculator(settings), inputs={"windows": by_key}, outputs=["models"])
    _detect(p, ValueDetector(settings), ["models", "windows"], feedback)
    return p


def _detect(p: Pipeline, detector: Computation, streams: Sequence[str], feedback: Injector | None) -> None:
    inputs: dict[str, KeyExtractor] = dict.fromkeys(streams, by_key)
    if feedback is not None:
        p.inject("feedback", feedback)
        inputs["feedback"] = by("key")
    p.add(detector, inputs=inputs, outputs=["anomalies", "episodes"])


@dataclass(frozen=True)
class Metrics:
    """Splits a record into one for each of the fields that it has."""

    fields: tuple[str, ...]

    def __call__(self, value: Any) -> Iterator[dict[str, Any]]:
        for field in self.fields:
            measured = field_of(value, field)
            if measured not in (None, ""):  # in CSV, what is missing is empty
                yield {**value, _METRIC: field, _MEASURED: measured}


@dataclass(frozen=True)
class MetricKey:
    """The key of a record together with the field that is watched."""

    key: KeyExtractor

    def __call__(self, record: Record) -> Any:
        key = self.key(record)
        return f"{key}|{record.value[_METRIC]}" if isinstance(key, str) else key
