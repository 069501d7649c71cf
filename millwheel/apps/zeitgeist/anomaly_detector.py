"""The base of both detectors: buffered buckets, and the episodes of anomalies.

A state has ``forecasts`` and ``waiting`` (by bucket), the open ``episode``, and the ``bar`` that feedback has
raised.
"""

from __future__ import annotations

from millwheel.apps.zeitgeist.episodes import Episode, Verdict
from millwheel.apps.zeitgeist.feedback import raised
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.computation import Computation
from millwheel.model.record import Record


class AnomalyDetector(Computation):
    """Buffers values until their bucket ends; reports an anomaly's begin and end.

    Inputs have no order between them within an epoch, so the buckets are compared in timers, which run after
    all records of the epoch.
    """

    def __init__(self, settings: Settings, sensitivity: float) -> None:
        self.settings = settings
        self.threshold = settings.sensitivity or sensitivity

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

    def is_clear(self, verdict: Verdict) -> bool:
        """Whether a verdict makes an anomaly of this key."""
        bar: float = self.state.bar
        return verdict.confidence >= self.threshold + bar

    def begin(self, verdict: Verdict, actual: float, found: int) -> None:
        """Opens an episode, and reports it."""
        episode = Episode(verdict.kind, verdict.since, found, verdict.confidence, actual, verdict.expected)
        self.state.episode = episode
        self.produce("anomalies", episode.message(self.settings, self.key), timestamp=found)
        self.count(f"{episode.kind}s")

    def end(self, bucket: int) -> None:
        """Closes the episode, and reports it again with its end."""
        self.produce("episodes", self.state.episode.message(self.settings, self.key, end=bucket))
        self.state.episode = None
