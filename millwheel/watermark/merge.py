"""Merges the watermarks that the tasks of a level report, in the tasks of the next one (7.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from millwheel.model.names import Percentile, WatermarkName, watermark_name
from millwheel.model.time import MIN_TIME
from millwheel.watermark.formula import lowest, percentile_watermark
from millwheel.watermark.percentile import Pending, passed
from millwheel.watermark.source import SourceMark


class PendingPart(NamedTuple):
    """What one interval reports for a computation's percentiles."""

    reached: Mapping[WatermarkName, int]
    """By percentile low watermark of the computation: its input's, in this interval."""
    pending: Sequence[Any]
    """What a `Pending` has."""


def merge_injected(
    sources: Mapping[WatermarkName, SourceMark],
    held: Iterable[Mapping[WatermarkName, int]],
    newest: Iterable[Mapping[WatermarkName, int]],
) -> dict[WatermarkName, int]:
    """The injectors' watermarks in the first level: what the plan knows, joined by what each task read.

    ``held`` and ``newest`` are, by task: the watermark of what was read, and the newest timestamp of it.
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
    """The percentile low watermarks of a level, where all of its intervals are known.

    ``lows`` has the exact ones. What an ``unfinished`` computation left may yet produce: its own stay.
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
