"""The counters of a computation, declared once.

A counter is a field of `Counters`. The report of an interval, the totals in the journal, `Report`, the view,
the metrics, the texts of `millwheel status` and the page all take their counters from here, so a new one is
one field and the line that adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

Kind = Literal["", "warn", "bad"]


@dataclass(frozen=True)
class Counter:
    """How a counter is shown."""

    name: str
    metric: str
    """Its name in Prometheus, without the suffix ``_total``."""
    text: str
    kind: Kind | None = None
    """The severity if it is not zero ("" for none); None: shown in metrics only."""
    sampled: bool = False
    """Whether the history of the last minutes includes it."""


_ZERO: Any = 0  # replaced by an empty dict in a `Report`, which counts by computation


def shown(
    metric: str, text: str, *, kind: Kind | None = None, sampled: bool = False
) -> dict[str, str | bool | None]:
    """The metadata of a counter's field."""
    return {"metric": metric, "text": text, "kind": kind, "sampled": sampled}


@dataclass(kw_only=True)
class Counters(Generic[T]):
    """The counters of a computation: numbers, or in `millwheel.Report` dicts."""

    records: T = field(
        default=_ZERO,
        metadata=shown(
            "millwheel_records", "Records that a hook of the computation has processed.", sampled=True
        ),
    )
    """Records that a hook has processed."""
    produced: T = field(
        default=_ZERO,
        metadata=shown("millwheel_productions", "Records that the computation has produced.", sampled=True),
    )
    """Records that the computation has produced."""
    produced_late: T = field(
        default=_ZERO,
        metadata=shown("millwheel_late_productions", "Productions below the computation's low watermark."),
    )
    """Productions with a timestamp below the computation's low watermark."""
    late: T = field(
        default=_ZERO,
        metadata=shown(
            "millwheel_late_records",
            "Records behind the low watermark when they came.",
            kind="warn",
            sampled=True,
        ),
    )
    """Late records, delivered, dropped or diverted."""
    dropped: T = field(
        default=_ZERO,
        metadata=shown(
            "millwheel_dropped_records", "Late records that were dropped.", kind="warn", sampled=True
        ),
    )
    """Late records that were dropped."""
    diverted: T = field(
        default=_ZERO,
        metadata=shown("millwheel_diverted_records", "Late records that were diverted.", kind="warn"),
    )
    """Late records that went to ``NAME.late``."""
    duplicates: T = field(
        default=_ZERO,
        metadata=shown(
            "millwheel_duplicate_records", "Records that had been seen before.", kind="", sampled=True
        ),
    )
    """Records whose ID had been seen before."""
    ids_filtered: T = field(
        default=_ZERO,
        metadata=shown("millwheel_ids_filtered", "IDs found to be new by the filter, without a store read."),
    )
    """IDs found to be new by the filter, without a store read."""
    ids_read: T = field(default=_ZERO, metadata=shown("millwheel_ids_read", "IDs looked up in the store."))
    """IDs looked up in the store."""
    rows_cached: T = field(
        default=_ZERO,
        compare=False,
        metadata=shown("millwheel_rows_cached", "Rows found in the cache, without a store read."),
    )
    """Rows found in the cache, or known there to be absent."""
    rows_read: T = field(
        default=_ZERO,
        compare=False,
        metadata=shown("millwheel_rows_read", "Rows read from the store after a cache miss."),
    )
    """Rows read from the store after a cache miss."""
    steps_stayed: T = field(
        default=_ZERO,
        compare=False,
        metadata=shown(
            "millwheel_steps_stayed", "Steps that ran on the executor of the last step, which has the state."
        ),
    )
    """On a cluster: steps that ran on the executor of their interval's last one."""
    steps_moved: T = field(
        default=_ZERO,
        compare=False,
        metadata=shown("millwheel_steps_moved", "Steps that ran on another executor than the last step."),
    )
    """On a cluster: steps that ran on another executor than their interval's last one."""
    failed: T = field(
        default=_ZERO,
        metadata=shown(
            "millwheel_failed_records",
            "Records and timers whose hook raised and which were diverted.",
            kind="bad",
            sampled=True,
        ),
    )
    """Records and timers whose hook raised and which were diverted."""
    timers: T = field(default=_ZERO, metadata=shown("millwheel_timers_fired", "Timers that have fired."))
    """Timers that have fired."""


COUNTERS = tuple(Counter(each.name, **each.metadata) for each in fields(Counters))
"""In the order in which they are shown."""
NAMES = tuple(each.name for each in COUNTERS)
SAMPLED = tuple(each.name for each in COUNTERS if each.sampled)
TROUBLE = tuple(each for each in COUNTERS if each.kind is not None)
"""Those that are shown if they are not zero."""
