"""Timers: per-key hooks at a wall time or a low watermark (4.6)."""

from __future__ import annotations

from typing import NamedTuple

from millwheel.model.time import WATERMARK, Clock


class Timer(NamedTuple):
    """A timer of one key, named by its tag, for both clocks.

    >>> Timer("close", 5_000_000)
    Timer(tag='close', timestamp=5000000, clock='watermark')
    """

    tag: str
    timestamp: int
    clock: Clock = WATERMARK
