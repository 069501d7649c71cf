"""The Model Calculator and the Detector of measured values.

The topology is that of counts; the mathematics is another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millwheel.apps.zeitgeist.anomaly_detector import AnomalyDetector
from millwheel.apps.zeitgeist.episodes import Episode
from millwheel.apps.zeitgeist.packed import Packed
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.surprise import SENSITIVITY, Surprise
from millwheel.apps.zeitgeist.value_model import ValueForecast, ValueModel
from millwheel.model.computation import Computation
from millwheel.model.record import Record
from millwheel.model.timer import Timer


class ValueCalculator(Computation):
    """Keeps the model of a key; produces [bucket, *forecast] for each bucket."""

    codec = Packed(ValueModel)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def initial_state(self) -> ValueModel:
        return ValueModel()

    def process_record(self, record: Record) -> None:
        bucket, value = record.value
        model: ValueModel = self.state
        forecast = model.learn(self.settings, bucket, value)
        if forecast is not None:
            self.produce("models", [bucket, *forecast])


@dataclass
class Gauge:
    """The state of a key with values: forecasts, buffered values and the surprise."""

    forecasts: dict[int, list[float]] = field(default_factory=dict)
    waiting: dict[int, float] = field(default_factory=dict)
    surprise: Surprise = field(default_factory=Surprise, metadata={"packed": Surprise})
    episode: Episode | None = field(default=None, metadata={"packed": Episode})
    bar: float = 0.0


class ValueDetector(AnomalyDetector):
    """Compares the values of a key with its model; reports anomalies.

    Each is reported as it begins, and again as it ends.
    """

    codec = Packed(Gauge)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, SENSITIVITY)

    def initial_state(self) -> Gauge:
        return Gauge()

    def process_timer(self, timer: Timer) -> None:
        gauge: Gauge = self.state
        bucket = int(timer.tag)
        value, told = gauge.waiting.pop(bucket), gauge.forecasts.pop(bucket, None)
        forecast = ValueForecast(*told) if told is not None else None  # type: ignore[arg-type]
        verdict = gauge.surprise.judge(self.settings, forecast, bucket, value)
        if gauge.episode is not None:
            end = gauge.episode.extend(self.settings, bucket, value, verdict)
            if end is not None:
                self.end(end)
        elif self.is_clear(verdict):
            self.begin(verdict, value, timer.timestamp)
            gauge.surprise.rest(verdict.confidence)
