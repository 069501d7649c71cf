"""Queries, Window Counter, Model Calculator, Spike and Dip Detector, anomalies: Fig. 1, as Fig. 9 does it.

    python -m examples.zeitgeist.logs logs
    millwheel run examples.zeitgeist.pipeline:pipeline --store state --drain

A count of search queries per second and query is compared with what a model of the query expects. There is no
code for failures, for order or for duplicates: state, timers and productions of a key are committed together.
The mathematics, what to expect and how sure one can be, is in `millwheel.apps.zeitgeist`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import millwheel as mw
from millwheel.apps.zeitgeist.counts import CountModel, Forecast
from millwheel.apps.zeitgeist.leaning import Leaning, records_missed
from millwheel.apps.zeitgeist.packed import Packed
from millwheel.apps.zeitgeist.settings import Settings

SETTINGS = Settings(width=mw.SECOND)
CONFIDENCE_THRESHOLD = 7.0  # decades


class WindowCounter(mw.Computation):
    """Counts a query's records per second; produces a second once all of its data is in."""

    def process_record(self, record: mw.Record) -> None:
        bucket = record.timestamp // mw.SECOND
        self.state[bucket] = self.state.get(bucket, 0) + 1
        self.set_timer(str(bucket), (bucket + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        count = self.state.pop(int(timer.tag))
        self.produce("window counts", [int(timer.tag), count], timestamp=timer.timestamp - 1)


class ModelCalculator(mw.Computation):
    """Keeps a query's model, for months; produces what it expects after each complete second."""

    codec = Packed(CountModel)

    def initial_state(self) -> CountModel:
        return CountModel()

    def process_record(self, record: mw.Record) -> None:
        bucket, count = record.value
        self.state.update(SETTINGS, bucket, count)
        forecast = self.state.forecast(SETTINGS, bucket + 1)
        missed_after = 0
        if forecast.regular:
            missed_after = self.state.patience(SETTINGS, records_missed(SETTINGS, forecast))
        self.produce("model updates", [bucket, missed_after, *forecast])


@dataclass
class Watch:
    """What the detector keeps of a query: the model's forecasts, counts to compare, and its confidence."""

    forecasts: dict[int, list[float]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    leaning: Leaning = field(default_factory=Leaning, metadata={"packed": Leaning})
    told: bool = False


class SpikeAndDipDetector(mw.Computation):
    """Compares the counts with the model; tells when it is confident that a query spikes, or dips.

    Both streams are its input (Fig. 3). A timer runs when both have arrived for a second; another one when
    the query is silent for so long that even this is odd.
    """

    codec = Packed(Watch)

    def initial_state(self) -> Watch:
        return Watch()

    def process_record(self, record: mw.Record) -> None:
        if record.stream == "window counts":
            bucket, count = record.value
            self.state.counts[bucket] = count
            self.set_timer(str(bucket), (bucket + 1) * mw.SECOND)
        else:
            bucket, missed_after, *forecast = record.value
            self.state.forecasts[bucket] = forecast
            if missed_after:
                self.set_timer("silence", (bucket + missed_after + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        bucket = timer.timestamp // mw.SECOND - 1
        if timer.tag == "silence":
            if self.low_watermark == mw.MAX_TIME and not self.state.counts:
                return  # the logs have ended, not the query
            verdict = self.state.leaning.miss(SETTINGS, self._forecast(bucket), bucket)
        else:
            count = self.state.counts.pop(bucket)
            verdict = self.state.leaning.judge(SETTINGS, self._forecast(bucket), bucket, count)
        confident = verdict.confidence > CONFIDENCE_THRESHOLD
        if confident and not self.state.told:
            self.produce("anomalies", {"query": self.key, "kind": verdict.kind, "since": verdict.since})
        elif timer.tag == "silence":
            self.set_timer("silence", timer.timestamp + mw.SECOND)
        self.state.told = confident

    def _forecast(self, bucket: int) -> Forecast | None:
        """The newest forecast that did not know the bucket; older ones are of no more use."""
        forecasts = self.state.forecasts
        before = max((after for after in forecasts if after < bucket), default=None)
        if before is None:
            return None
        self.state.forecasts = {after: told for after, told in forecasts.items() if after >= before}
        return Forecast(*forecasts[before])


def pipeline(logs: str = "logs/*.jsonl") -> mw.Pipeline:
    """The graph: all of it is keyed by the query, so it runs in one task, and in one transaction."""
    p = mw.Pipeline("zeitgeist")
    p.inject("queries", mw.injectors.Files(logs, timestamp="time", id="id"))
    p.add(WindowCounter(), inputs={"queries": mw.by("query")}, outputs=["window counts"], late="drop")
    p.add(ModelCalculator(), inputs={"window counts": mw.by_key}, outputs=["model updates"])
    p.add(
        SpikeAndDipDetector(),
        inputs={"model updates": mw.by_key, "window counts": mw.by_key},
        outputs=["anomalies"],
    )
    p.sink("anomalies", mw.sinks.JsonLines("anomalies"))
    return p
