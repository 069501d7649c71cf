"""A line of progress on a terminal."""

from __future__ import annotations

import time
from typing import TextIO

from millwheel.master.driver import Driver
from millwheel.master.status import Report
from millwheel.model.time import MAX_TIME, MIN_TIME, SECOND

_EVERY = 0.25  # seconds: often enough to look alive, seldom enough to cost nothing


class Progress:
    """Rewrites one line: epochs, records in a second, and how far the watermark is behind."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = 0.0
        self._records = 0
        self._shown = False

    def show(self, report: Report, driver: Driver) -> None:
        """Shows a report, unless the last one is still fresh."""
        now = time.monotonic()
        if now - self._last < _EVERY:
            return
        rate = (report.records_in - self._records) / (now - self._last) if self._last else 0.0
        self._last, self._records = now, report.records_in
        lowest = min(report.low_watermarks.values(), default=MAX_TIME)
        text = (
            f"{report.pipeline}: epoch {driver.epoch:,}  {report.records_in:,} records"
            f"  {rate:,.0f}/s  watermark {_lag(lowest, driver.now())}"
        )
        self._out.write(f"\r\x1b[K{text}")
        self._out.flush()
        self._shown = True

    def close(self) -> None:
        """Leaves the line."""
        if self._shown:
            self._out.write("\n")
            self._out.flush()


def _lag(watermark: int, now: int) -> str:
    if watermark == MIN_TIME:
        return "not known yet"
    if watermark == MAX_TIME:
        return "at its end"
    seconds = (now - watermark) / SECOND
    if abs(seconds) < 3600:
        return f"{seconds:.1f} s behind"
    return f"{seconds / 3600:,.1f} h behind"
