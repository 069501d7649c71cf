"""Confidence over several buckets: since when, and how clearly, counts changed.

Page's cumulative sum says since when the counts fit a changed rate better than the expected one; the
likelihood ratio of all counts since then is the confidence. A clear spike is sure in one bucket, a slight
one after several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from millwheel.apps.zeitgeist.counts import Forecast, likelihood_ratio
from millwheel.apps.zeitgeist.episodes import Verdict
from millwheel.apps.zeitgeist.settings import Settings

SENSITIVITY = 7.0
"""Decades. With 10,000 keys and a bucket every second, chance alone reaches it about once an hour."""
_MORE, _LESS = 1.5, 0.6  # a change of rate that is worth reporting
_DENSE = 6  # silent buckets that do not interrupt a spike

Run = list[float]
"""[the bucket that it began with, the records since, the records expected, the cumulative sum]"""


@dataclass
class Leaning:
    """What the detector keeps of a key: a run of buckets to each side."""

    last: int = -1
    up: Run = field(default_factory=lambda: [0, 0.0, 0.0, 0.0])
    down: Run = field(default_factory=lambda: [0, 0.0, 0.0, 0.0])

    def judge(self, settings: Settings, forecast: Forecast | None, bucket: int, count: float) -> Verdict:
        """Adds a complete bucket. Those between the last one and it had no record."""
        forecast = expect(settings, forecast, bucket)
        if forecast is None:
            self.last = bucket
            return Verdict()
        silent = bucket - self.last - 1 if self.last >= 0 else 0
        if silent > 0:
            _lean(self.down, self.last + 1, 0.0, forecast.low * silent, _LESS)
            _lean(self.up, self.last + 1, 0.0, forecast.high * silent, _MORE)
        if silent >= _DENSE:
            self.up = [bucket, 0.0, 0.0, 0.0]
        if not forecast.regular:
            self.down = [bucket, 0.0, 0.0, 0.0]
        self._restart(settings, forecast, bucket, count)
        more = _lean(self.up, bucket, count, forecast.high, _MORE)
        fewer = _lean(self.down, bucket, count, forecast.low, _LESS)
        self.last = bucket
        rising, falling = _confidence(self.up, forecast, settings), _confidence(self.down, forecast, settings)
        if rising >= falling:
            return Verdict(1 if rising else 0, rising, int(self.up[0]), forecast.mean, more <= 0.0)
        return Verdict(-1, falling, int(self.down[0]), forecast.mean, fewer <= 0.0)

    def peek(self, settings: Settings, forecast: Forecast | None, bucket: int, count: float) -> Verdict:
        """The verdict of an incomplete bucket: more data only makes a spike larger."""
        forecast = expect(settings, forecast, bucket)
        if forecast is None:
            return Verdict()
        alone = [bucket, count, forecast.high, 1.0]
        evident = _confidence(alone, forecast, settings) >= _threshold(settings)
        run = [bucket, 0.0, 0.0, 0.0] if evident or bucket - self.last > _DENSE else list(self.up)
        _lean(run, bucket, count, forecast.high, _MORE)
        return Verdict(1, _confidence(run, forecast, settings), int(run[0]), forecast.mean, calm=False)

    def miss(self, settings: Settings, forecast: Forecast, bucket: int) -> Verdict:
        """Takes in that a key was silent up to a bucket."""
        _lean(self.down, self.last + 1, 0.0, forecast.low * (bucket - self.last), _LESS)
        self.up = [bucket + 1, 0.0, 0.0, 0.0]
        self.last = bucket
        missing = _confidence(self.down, forecast, settings)
        return Verdict(-1, missing, int(self.down[0]), forecast.mean, calm=False)

    def _restart(self, settings: Settings, forecast: Forecast, bucket: int, count: float) -> None:
        """Starts the sum anew at a bucket that is a spike by itself."""
        if self.up[3] > 0.0 and _confidence(self.up, forecast, settings) < _threshold(settings):
            alone = [bucket, count, forecast.high, 1.0]
            if _confidence(alone, forecast, settings) >= _threshold(settings):
                self.up = [bucket, 0.0, 0.0, 0.0]

    def forget(self) -> None:
        """After an anomaly, both sides begin anew."""
        self.up, self.down = [self.last + 1, 0.0, 0.0, 0.0], [self.last + 1, 0.0, 0.0, 0.0]


def expect(settings: Settings, forecast: Forecast | None, bucket: int) -> Forecast | None:
    """The forecast of a bucket; None while a key of the stream's begin is learned.

    A key that appears later counts as new: nothing was expected of it.
    """
    age = forecast.age if forecast is not None else 0
    if age >= settings.warmup:
        return forecast
    learned = None if settings.begin is None else settings.begin // settings.width + settings.warmup
    new = Forecast(low=0.0, mean=settings.rare / 4, high=settings.rare, noise=1.0, age=0)
    return new if learned is not None and bucket - age >= learned else None


def records_missed(settings: Settings, forecast: Forecast) -> float:
    """How many records a silence must lack before it is an anomaly."""
    return _threshold(settings) * math.log(10) * forecast.noise


def _threshold(settings: Settings) -> float:
    return settings.sensitivity or SENSITIVITY


def _lean(run: Run, bucket: int, count: float, expected: float, ratio: float) -> float:
    """Moves a run on; returns what the bucket adds to its cumulative sum."""
    added = count * math.log(ratio) + expected * (1.0 - ratio)
    total = run[3] + added
    if total <= 0.0:
        run[:] = [bucket + 1, 0.0, 0.0, 0.0]
    else:
        if run[3] == 0.0:
            run[0] = bucket
        run[1:] = [run[1] + count, run[2] + expected, total]
    return added


def _confidence(run: Run, forecast: Forecast, settings: Settings) -> float:
    _, count, expected, total = run
    if total <= 0.0 or (_LESS * expected < count < max(_MORE * expected, settings.fewest)):
        return 0.0
    return likelihood_ratio(count, expected) / forecast.noise
