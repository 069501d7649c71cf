"""The Model Calculator and the Detector of measured values: the same topology, other mathematics."""

from __future__ import annotations

from dataclasses import dataclass, field

from millwheel.apps.zeitgeist.episodes import Episode
from millwheel.apps.zeitgeist.feedback import raised
from millwheel.apps.zeitgeist.packed import Packed
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.surprise import SENSITIVITY, Surprise
from millwheel.apps.zeitgeist.value_model import ValueForecast, ValueModel
from millwheel.model.computation import Computation
from millwheel.model.record import Record
from millwheel.model.timer import Timer


class ValueCalculator(Computation):
    """Keeps the model of a key; produces [bucket, *forecast], what it had expected of each bucket."""

    codec = Packed(ValueModel)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def initial_state(self) -> ValueModel:
        return ValueModel()

    def process_record(self, record: Record) -> None:
        bucket, value = record.value
        model: ValueModel = self.state
        if model.age:
            self.produce("models", [bucket, *model.forecast(self.settings, bucket)])
        model.update(self.settings, bucket, value)


@dataclass
class Gauge:
    """What is known of a key that measures: what was expected and what came, and the judgement."""

    forecasts: dict[int, list[float]] = field(default_factory=dict)
    waiting: dict[int, float] = field(default_factory=dict)
    surprise: Surprise = field(default_factory=Surprise, metadata={"packed": Surprise})
    episode: Episode | None = field(default=None, metadata={"packed": Episode})
    bar: float = 0.0


class ValueDetector(Computation):
    """Compares the values of a key with its model; tells an anomaly as it begins, and when it is over."""

    codec = Packed(Gauge)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.threshold = settings.sensitivity or SENSITIVITY

    def initial_state(self) -> Gauge:
        return Gauge()

    def process_record(self, record: Record) -> None:
        if record.stream == "feedback":
            self.state.bar = raised(self.state.bar)
            return
        bucket, *told = record.value
        if record.stream == "models":
            self.state.forecasts[bucket] = told
        else:
            self.state.waiting[bucket] = told[0]
            self.set_timer(str(bucket), (bucket + 1) * self.settings.width)

    def process_timer(self, timer: Timer) -> None:
        gauge: Gauge = self.state
        bucket = int(timer.tag)
        value, told = gauge.waiting.pop(bucket), gauge.forecasts.pop(bucket, None)
        forecast = ValueForecast(*told) if told is not None else None  # type: ignore[arg-type]
        verdict = gauge.surprise.judge(self.settings, forecast, bucket, value)
        if gauge.episode is not None:
            end = gauge.episode.extend(self.settings, bucket, value, verdict)
            if end is not None:
                self.produce("episodes", gauge.episode.message(self.settings, self.key, end=end))
                gauge.episode = None
        elif verdict.confidence >= self.threshold + gauge.bar:
            found = timer.timestamp
            gauge.episode = Episode(verdict.kind, bucket, found, verdict.confidence, value, verdict.expected)
            gauge.surprise.rest(verdict.confidence)
            self.produce("anomalies", gauge.episode.message(self.settings, self.key))
            self.count(f"{gauge.episode.kind}s")
