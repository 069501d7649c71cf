"""The demo in a terminal: queries, watermark and throughput, redrawn in place."""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Sequence
from typing import Any, TextIO

from millwheel.apps.zeitgeist.feed import Counts
from millwheel.apps.zeitgeist.sparkline import sparkline
from millwheel.apps.zeitgeist.synthetic import REGIONS, START, Traffic, name
from millwheel.master.status import Report
from millwheel.model.time import MAX_TIME, MIN_TIME, SECOND

_RED, _BLUE, _BOLD, _DIM, _PLAIN = "\x1b[31m", "\x1b[34m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
_MARKS = {"spike": f"{_RED}▲{_PLAIN}", "dip": f"{_BLUE}▼{_PLAIN}"}
_LISTED = 8
_SHOWN_BUCKETS = 96


class View:
    """Draws over its last drawing. Unused where there is no terminal."""

    def __init__(self, out: TextIO, traffic: Traffic, counts: Counts) -> None:
        self._out = out
        self._traffic = traffic
        self._counts = counts
        self._began = time.monotonic()
        self._lines = 0

    def show(self, report: Report, anomalies: Sequence[dict[str, Any]]) -> None:
        """Draws the state of the run."""
        width = max(shutil.get_terminal_size().columns, 60)
        lines = self._draw(report, anomalies, bars=max(min(width - 46, _SHOWN_BUCKETS), 10))
        back = f"\x1b[{self._lines}F\x1b[J" if self._lines else ""
        self._out.write(back + "\n".join(lines) + "\n")
        self._out.flush()
        self._lines = len(lines)

    def clear(self) -> None:
        """Leaves an empty place."""
        if self._lines:
            self._out.write(f"\x1b[{self._lines}F\x1b[J")
            self._lines = 0

    def _draw(self, report: Report, anomalies: Sequence[dict[str, Any]], bars: int) -> list[str]:
        low = min(report.low_watermarks.values(), default=MIN_TIME)
        done = self._traffic.buckets if low == MAX_TIME else (low - START) // self._traffic.width
        done = min(max(done, 0), self._traffic.buckets)
        seconds = time.monotonic() - self._began
        at = moment(START + done * self._traffic.width)
        lines = [
            f"{_BOLD}zeitgeist{_PLAIN}  {_DIM}low watermark{_PLAIN} {at}"
            f"  {_DIM}queries{_PLAIN} {report.records_in:,}  {_DIM}a second{_PLAIN} "
            f"{report.records_in / seconds:,.0f}  {_DIM}epochs{_PLAIN} {report.epochs}",
            "",
        ]
        busiest = [f"region {region}" for region in REGIONS] + [name(rank) for rank in range(3)]
        lines += [self._row(" ", key, done, bars) for key in busiest]
        lines += ["", f"{_BOLD}trending and dipping{_PLAIN}"]
        for told in sorted(anomalies, key=lambda message: -message["found"])[:_LISTED]:
            lines.append(self._row(_MARKS[told["kind"]], told["key"], done, bars, moment(told["start"])))
        return lines

    def _row(self, mark: str, key: str, done: int, bars: int, text: str = "") -> str:
        counts = self._counts.series(key)[max(done - _SHOWN_BUCKETS, 0) : done]
        return f"{mark} {key:24.24} {sparkline(counts, bars):{bars}} {text}"


def moment(time: int) -> str:
    """A time of the stream for people.

    >>> moment(START)
    'Thu 00:00'
    """
    return f"{datetime.datetime.fromtimestamp(time // SECOND, datetime.timezone.utc):%a %H:%M}"
