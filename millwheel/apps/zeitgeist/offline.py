"""Anomalies of a series of values without a pipeline: the same model and rules."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.apps.zeitgeist.episodes import Episode
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.surprise import SENSITIVITY, Surprise
from millwheel.apps.zeitgeist.value_model import ValueModel


def detect(settings: Settings, series: Iterable[tuple[int, float]]) -> list[int]:
    """The rows of (time, value) at which an anomaly begins, each without look-ahead.

    >>> calm = [(second * 1_000_000, 10.0 + second % 7) for second in range(300)]
    >>> detect(Settings(kind="values"), [*calm, (300_000_000, 95.0)])
    [300]
    """
    model, surprise, begun = ValueModel(), Surprise(), []
    episode: Episode | None = None
    for row, (time, value) in enumerate(series):
        bucket = time // settings.width
        forecast = model.learn(settings, bucket, value)
        verdict = surprise.judge(settings, forecast, bucket, value)
        if episode is not None:
            if episode.extend(settings, bucket, value, verdict) is not None:
                episode = None
        elif verdict.confidence >= (settings.sensitivity or SENSITIVITY):
            episode = Episode(verdict.kind, bucket, time, verdict.confidence, value, verdict.expected)
            surprise.rest(verdict.confidence)
            begun.append(row)
    return begun
