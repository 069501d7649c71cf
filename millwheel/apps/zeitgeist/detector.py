"""The Spike and Dip Detector (Fig. 1, 3, 9): compares counts with the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from millwheel.apps.zeitgeist.anomaly_detector import AnomalyDetector
from millwheel.apps.zeitgeist.counts import Forecast
from millwheel.apps.zeitgeist.episodes import SPIKE, Episode, Verdict
from millwheel.apps.zeitgeist.leaning import SENSITIVITY, Leaning
from millwheel.apps.zeitgeist.packed import Packed
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.record import Record
from millwheel.model.time import MAX_TIME, WALL
from millwheel.model.timer import Timer

_SILENCE = "silence"
_LOOK = "look"
_FRESH = 5  # buckets between the low watermark and one that is compared before it is complete


@dataclass
class Watch:
    """The state of a key: forecasts, buckets to compare, and the open episode."""

    forecasts: dict[int, list[float]] = field(default_factory=dict)
    waiting: dict[int, float] = field(default_factory=dict)
    partial: dict[int, list[int]] = field(default_factory=dict)
    leaning: Leaning = field(default_factory=Leaning, metadata={"packed": Leaning})
    episode: Episode | None = field(default=None, metadata={"packed": Episode})
    bar: float = 0.0

    def forecast(self, bucket: int) -> Forecast | None:
        """The newest forecast that did not know the bucket."""
        known = [after for after in self.forecasts if after < bucket]
        return Forecast(*self.forecasts[max(known)][:-1]) if known else None  # type: ignore[arg-type]


class Detector(AnomalyDetector):
    """Compares the counts of a key with its model; reports anomalies.

    Each is reported as it begins, and again as it ends.

    A spike is reported as soon as it is evident, before its bucket is complete. A dip waits for the low
    watermark: what is missing until then may only be late. A key that falls silent sends nothing that
    could be compared, so a timer waits for the moment when that is odd.
    """

    codec = Packed(Watch)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, SENSITIVITY)

    def initial_state(self) -> Watch:
        return Watch()

    def process_record(self, record: Record) -> None:
        if record.stream != "partial":
            super().process_record(record)
        elif self.state.episode is None:
            bucket, count = record.value
            self.state.partial[bucket] = [count, record.timestamp]
            # It fires in this epoch, once all complete buckets are compared.
            self.set_timer(_LOOK, self.now, clock=WALL)

    def process_timer(self, timer: Timer) -> None:
        if timer.tag == _LOOK:
            self._look()
        elif timer.tag == _SILENCE:
            self._miss(timer)
        else:
            self._judge(timer)

    def _judge(self, timer: Timer) -> None:
        """A bucket is complete, its count and the model of before are there."""
        watch: Watch = self.state
        bucket = int(timer.tag)
        count = watch.waiting.pop(bucket)
        verdict = watch.leaning.judge(self.settings, watch.forecast(bucket), bucket, count)
        self._judged(bucket, count, verdict, timer.timestamp)
        watch.forecasts = {after: told for after, told in watch.forecasts.items() if after >= bucket}
        self._await_silence(bucket)

    def _miss(self, timer: Timer) -> None:
        """The key has been silent for so long that it is odd."""
        watch: Watch = self.state
        bucket = timer.timestamp // self.settings.width - 1
        forecast = watch.forecast(bucket)
        if forecast is None or (self.low_watermark == MAX_TIME and not watch.waiting):
            return  # the stream has ended, not the key
        self._judged(bucket, 0.0, watch.leaning.miss(self.settings, forecast, bucket), timer.timestamp)
        if watch.episode is None:
            self.set_timer(_SILENCE, timer.timestamp + self.settings.width)

    def _look(self) -> None:
        """Buckets that are growing: a spike may be evident."""
        watch: Watch = self.state
        for bucket, (count, time) in sorted(watch.partial.items()):
            if watch.episode is None and watch.leaning.last < bucket and self._is_fresh(bucket):
                verdict = watch.leaning.peek(self.settings, watch.forecast(bucket), bucket, count)
                self._begin(verdict, count, found=time)
        watch.partial.clear()

    def _judged(self, bucket: int, actual: float, verdict: Verdict, found: int) -> None:
        watch: Watch = self.state
        if watch.episode is None:
            self._begin(verdict, actual, found)
            return
        if watch.episode.kind == SPIKE and verdict.side < 0 and self.is_clear(verdict):
            self.end(bucket)  # a spike that turns into a dip
            watch.leaning.forget()
            self._begin(verdict, actual, found)
            return
        end = watch.episode.extend(self.settings, bucket, actual, verdict)
        if end is not None:
            self.end(end)
            watch.leaning.forget()

    def _begin(self, verdict: Verdict, actual: float, found: int) -> None:
        if self.is_clear(verdict):
            self.begin(verdict, actual, found)

    def _is_fresh(self, bucket: int) -> bool:
        """Whether the model has seen all before a bucket; not so during a backlog."""
        return bucket - self.low_watermark // self.settings.width <= _FRESH

    def _await_silence(self, bucket: int) -> None:
        """Sets the timer of the bucket from which a silence would be an anomaly."""
        told = self.state.forecasts.get(bucket)
        if told is None or told[-1] == 0:
            self.clear_timer(_SILENCE)
            return
        self.set_timer(_SILENCE, (bucket + int(told[-1]) + 1) * self.settings.width)
