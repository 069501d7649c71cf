"""Metrics for Prometheus, made of a view on request.

Labels are names of the pipeline's own parts (computations, streams, injectors, intervals) and the names
of user counts, which are limited. No key and no partition is ever a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.model.time import MAX_TIME, MIN_TIME, SECOND
from millwheel.watch.history import BUCKETS
from millwheel.watch.view import View
from millwheel.worker.counters import COUNTERS

MOST_USER_COUNTS = 200
"""Names of user counts that get a series of their own; the others share one."""
OTHERS = "(others)"

Values = Iterable[tuple[list[str], float]]
"""Labels, and a value."""

_GAUGES = {
    "filter_bytes": ("millwheel_id_filter_bytes", "The size of the filters for seen IDs."),
    "filter_error": (
        "millwheel_id_filter_error_ratio",
        "The false positive rate of the filters for seen IDs.",
    ),
    "holds": ("millwheel_holds", "Holds of the low watermark."),
    "waiting": (
        "millwheel_waiting_records",
        "Buffered records of computations that are in order.",
    ),
    "rows": ("millwheel_keys", "Keys that have a row in the store."),
    "bytes": ("millwheel_state_bytes", "The size of the keys' states."),
}


def exposition(view: View) -> tuple[bytes, str]:
    """The metrics in Prometheus's text format, and the content type."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    except ImportError as error:
        raise MillWheelError("metrics need prometheus-client: pip install 'millwheel-spark[ui]'") from error

    class Collector:
        """The collector for the registry."""

        def collect(self) -> Iterable[Any]:
            """All families."""
            return _Families(view).all()

    registry = CollectorRegistry()
    registry.register(Collector())
    return bytes(generate_latest(registry)), str(CONTENT_TYPE_LATEST)


class _Families:
    """The families of a view."""

    def __init__(self, view: View) -> None:
        self._view = view

    def all(self) -> Iterator[Any]:
        """All families."""
        yield from self._of_the_run()
        yield from self._of_computations()
        yield from self._of_streams()

    def _of_the_run(self) -> Iterator[Any]:
        from prometheus_client.core import HistogramMetricFamily

        yield self._counter("millwheel_epochs", "Epochs that were committed.", [], [([], self._view.epochs)])
        yield self._counter(
            "millwheel_injected_records",
            "Records that the injectors have read.",
            [],
            [([], self._view.records_in)],
        )
        yield self._counter(
            "millwheel_bad_inputs",
            "Input that was not a record, diverted.",
            [],
            [([], self._view.input_errors)],
        )
        yield self._counter(
            "millwheel_user", "Counts of self.count, by name.", ["name"], _user(self._view.user)
        )
        yield self._gauge(
            "millwheel_interval_busy_ratio",
            "The recent share of time that an interval works.",
            ["level", "tablet"],
            [([str(part["level"]), str(part["first"])], part["busy"]) for part in self._view.intervals],
        )
        yield self._counter(
            "millwheel_interval_changes",
            "Key intervals that were moved, split and merged to follow the load.",
            ["kind"],
            [([kind], count) for kind, count in self._view.changed.items()],
        )
        yield self._counter(
            "millwheel_epoch_phase_seconds",
            "The time of epochs by phase, since the driver started.",
            ["phase"],
            [([phase], seconds) for phase, seconds in self._view.phases.items()],
        )
        durations = HistogramMetricFamily(
            "millwheel_epoch_duration_seconds",
            "Epochs by duration, since the driver started.",
            labels=["pipeline"],
        )
        durations.add_metric([self._view.pipeline], _buckets(self._view.durations), self._view.seconds)
        yield durations

    def _of_computations(self) -> Iterator[Any]:
        for each in COUNTERS:
            values = [([node.name], getattr(node, each.name)) for node in self._view.computations]
            yield self._counter(each.metric, each.text, ["computation"], values)
        for field, (name, text) in _GAUGES.items():
            yield self._gauge(
                name,
                text,
                ["computation"],
                [([node.name], getattr(node, field)) for node in self._view.computations],
            )
        yield self._gauge(
            "millwheel_pending_timers",
            "Pending timers, by clock.",
            ["computation", "clock"],
            [
                ([node.name, clock], getattr(node, f"{clock}_timers"))
                for node in self._view.computations
                for clock in ("watermark", "wall")
            ],
        )
        yield self._gauge(
            "millwheel_low_watermark_seconds",
            "The low watermark, in seconds since 1970; -Inf before the first value, +Inf at its end.",
            ["computation"],
            [([node.name], _seconds(node.low_watermark)) for node in self._view.computations],
        )
        yield self._gauge(
            "millwheel_low_watermark_lag_seconds",
            "How far the low watermark is behind real time; absent without a time.",
            ["computation"],
            [([node.name], node.lag) for node in self._view.computations if node.lag is not None],
        )

    def _of_streams(self) -> Iterator[Any]:
        yield self._gauge(
            "millwheel_injector_low_watermark_seconds",
            "The low watermark of an injector, in seconds since 1970.",
            ["injector"],
            [([part.name], _seconds(part.low_watermark)) for part in self._view.injectors],
        )
        yield self._gauge(
            "millwheel_injector_partitions",
            "Partitions that an injector has had.",
            ["injector"],
            [([part.name], part.partition_count) for part in self._view.injectors],
        )
        yield self._counter(
            "millwheel_stream_records",
            "Records that a stream has carried.",
            ["stream"],
            [([part.name], part.records) for part in self._view.streams],
        )

    def _counter(self, name: str, text: str, labels: list[str], values: Values) -> Any:
        from prometheus_client.core import CounterMetricFamily

        return self._filled(CounterMetricFamily(name, text, labels=["pipeline", *labels]), values)

    def _gauge(self, name: str, text: str, labels: list[str], values: Values) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        return self._filled(GaugeMetricFamily(name, text, labels=["pipeline", *labels]), values)

    def _filled(self, family: Any, values: Values) -> Any:
        for labels, value in values:
            family.add_metric([self._view.pipeline, *labels], value)
        return family


def _seconds(time: int) -> float:
    if time == MIN_TIME:
        return float("-inf")
    return float("inf") if time == MAX_TIME else time / SECOND


def _user(counts: dict[str, int]) -> list[tuple[list[str], float]]:
    """The first names have a series each; the others share one."""
    names = list(counts)
    found: list[tuple[list[str], float]] = [([name], counts[name]) for name in names[:MOST_USER_COUNTS]]
    if len(names) > MOST_USER_COUNTS:
        found.append(([OTHERS], sum(counts[name] for name in names[MOST_USER_COUNTS:])))
    return found


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative counts, as in Prometheus.

    >>> _buckets([1, 2] + [0] * (len(BUCKETS) - 1))[:3]
    [('0.01', 1), ('0.025', 3), ('0.05', 3)]
    """
    total = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
        total += count
        found.append((bound, total))
    return found
