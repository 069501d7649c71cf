"""Metrics for Prometheus, made of a view when they are asked for.

Labels are names of the pipeline's own parts (computations, streams, injectors, intervals) and the names
of user counts, of which there is a bound. No key and no partition is ever a label.
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

_GAUGES = {
    "filter_bytes": ("millwheel_id_filter_bytes", "The size of the filters before the seen IDs."),
    "filter_error": ("millwheel_id_filter_error_ratio", "New IDs for which the store is asked all the same."),
    "holds": ("millwheel_holds", "Holds of the low watermark."),
    "waiting": (
        "millwheel_waiting_records",
        "Records that wait for the watermark, of computations in order.",
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
        """What the registry asks."""

        def collect(self) -> Iterable[Any]:
            """Every family."""
            return _families(view)

    registry = CollectorRegistry()
    registry.register(Collector())
    return bytes(generate_latest(registry)), str(CONTENT_TYPE_LATEST)


def _families(view: View) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    def counter(name: str, text: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> Any:
        return _filled(CounterMetricFamily(name, text, labels=["pipeline", *labels]), values)

    def gauge(name: str, text: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> Any:
        return _filled(GaugeMetricFamily(name, text, labels=["pipeline", *labels]), values)

    def _filled(family: Any, values: Iterable[tuple[list[str], float]]) -> Any:
        for labels, value in values:
            family.add_metric([view.pipeline, *labels], value)
        return family

    nodes = view.computations
    yield counter("millwheel_epochs", "Epochs that were committed.", [], [([], view.epochs)])
    yield counter(
        "millwheel_injected_records", "Records that the injectors have read.", [], [([], view.records_in)]
    )
    yield counter(
        "millwheel_bad_inputs", "Input that was no record, diverted.", [], [([], view.input_errors)]
    )
    for each in COUNTERS:
        values = [([node.name], getattr(node, each.name)) for node in nodes]
        yield counter(each.metric, each.text, ["computation"], values)
    for field, (name, text) in _GAUGES.items():
        yield gauge(name, text, ["computation"], [([node.name], getattr(node, field)) for node in nodes])
    yield gauge(
        "millwheel_pending_timers",
        "Timers that wait, by the clock that they follow.",
        ["computation", "clock"],
        [
            ([node.name, clock], getattr(node, f"{clock}_timers"))
            for node in nodes
            for clock in ("watermark", "wall")
        ],
    )
    yield gauge(
        "millwheel_low_watermark_seconds",
        "The low watermark, in seconds since 1970; -Inf before anybody has spoken, +Inf at its end.",
        ["computation"],
        [([node.name], _seconds(node.low_watermark)) for node in nodes],
    )
    yield gauge(
        "millwheel_low_watermark_lag_seconds",
        "How far the low watermark is behind real time; absent where it has no time.",
        ["computation"],
        [([node.name], node.lag) for node in nodes if node.lag is not None],
    )
    yield gauge(
        "millwheel_injector_low_watermark_seconds",
        "The low watermark of an injector, in seconds since 1970.",
        ["injector"],
        [([part.name], _seconds(part.low_watermark)) for part in view.injectors],
    )
    yield gauge(
        "millwheel_injector_partitions",
        "Partitions that an injector has had.",
        ["injector"],
        [([part.name], part.partition_count) for part in view.injectors],
    )
    yield counter(
        "millwheel_stream_records",
        "Records that a stream has carried.",
        ["stream"],
        [([part.name], part.records) for part in view.streams],
    )
    yield counter("millwheel_user", "Counts of self.count, by name.", ["name"], _user(view.user))
    yield gauge(
        "millwheel_interval_busy_ratio",
        "The share of its time that an interval works, of late.",
        ["level", "tablet"],
        [([str(part["level"]), str(part["first"])], part["busy"]) for part in view.intervals],
    )
    yield counter(
        "millwheel_interval_changes",
        "Key intervals that were moved, split and merged to follow the load.",
        ["kind"],
        [([kind], count) for kind, count in view.changed.items()],
    )
    yield counter(
        "millwheel_epoch_phase_seconds",
        "Where the time of epochs went, since the driver started.",
        ["phase"],
        [([phase], seconds) for phase, seconds in view.phases.items()],
    )
    durations = HistogramMetricFamily(
        "millwheel_epoch_duration_seconds",
        "Epochs by duration, since the driver started.",
        labels=["pipeline"],
    )
    durations.add_metric([view.pipeline], _buckets(view.durations), view.seconds)
    yield durations


def _seconds(time: int) -> float:
    if time == MIN_TIME:
        return float("-inf")
    return float("inf") if time == MAX_TIME else time / SECOND


def _user(counts: dict[str, int]) -> list[tuple[list[str], float]]:
    """The first names have a series each; what comes after them is counted together."""
    names = list(counts)
    found: list[tuple[list[str], float]] = [([name], counts[name]) for name in names[:MOST_USER_COUNTS]]
    if len(names) > MOST_USER_COUNTS:
        found.append(([OTHERS], sum(counts[name] for name in names[MOST_USER_COUNTS:])))
    return found


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus has them.

    >>> _buckets([1, 2] + [0] * (len(BUCKETS) - 1))[:3]
    [('0.01', 1), ('0.025', 3), ('0.05', 3)]
    """
    total = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
        total += count
        found.append((bound, total))
    return found
