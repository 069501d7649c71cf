"""Merges the watermarks that the tasks of a level report, for the next one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from millwheel.model.names import Percentile, WatermarkName, watermark_name
from millwheel.model.time import MIN_TIME
from millwheel.watermark.formula import lowest, percentile_watermark
from millwheel.watermark.percentile import Pending, passed
from millwheel.watermark.source import SourceMark


class PendingPart(NamedTuple):
    """One interval's report for a computation's percentiles."""

    reached: Mapping[WatermarkName, int]
    """By percentile low watermark of the computation: the interval's input watermark."""
    pending: Sequence[Any]
    """The fields of a `Pending`."""


def merge_injected(
    sources: Mapping[WatermarkName, SourceMark],
    held: Iterable[Mapping[WatermarkName, int]],
    newest: Iterable[Mapping[WatermarkName, int]],
) -> dict[WatermarkName, int]:
    """The injectors' watermarks in the first level: the plan's and each task's.

    ``held`` and ``newest`` are, by task: the watermark of its input, and its newest timestamp.
    """
    merged = lowest(held)
    tops: dict[WatermarkName, int] = {}
    for part in newest:
        for name, top in part.items():
            tops[name] = max(tops.get(name, top), top)
    return {
        name: (mark.join(merged[name], tops[name]) if name in merged else mark).watermark()
        for name, mark in sources.items()
    }


def merge_percentiles(
    parts: Mapping[str, Sequence[PendingPart]],
    lows: Mapping[WatermarkName, int],
    before: Mapping[WatermarkName, int],
    unfinished: Collection[str],
) -> dict[WatermarkName, int]:
    """The percentile low watermarks of a level, from all of its intervals.

    ``lows`` has the exact ones. An ``unfinished`` computation keeps its values: it may still produce.
    """
    found: dict[WatermarkName, int] = {}
    for name, reported in parts.items():
        reached = {watermark_name(each): at for each, at in lowest(part.reached for part in reported).items()}
        pending = [Pending(*part.pending) for part in reported]
        for fast, at in reached.items():
            assert isinstance(fast, Percentile)
            position = MIN_TIME if name in unfinished else passed(pending, fast.percentile)[0]
            found[fast] = percentile_watermark(at, position, lows[name], before.get(fast, MIN_TIME))
    return found
