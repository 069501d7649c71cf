"""Progress of a run: a line in a terminal, lines elsewhere, a bar in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any, Protocol, TextIO

from millwheel.master.driver import Driver
from millwheel.master.html import notebook_display
from millwheel.master.status import Report
from millwheel.model.time import MAX_TIME, MIN_TIME, SECOND

_IN_PLACE = 0.25  # seconds: often enough to look alive, rare enough to cost nothing
_BY_LINE = 10.0  # seconds: keeps a log readable


class Out(Protocol):
    """The output of progress."""

    every: float
    """Seconds between two updates."""

    def show(self, text: str, done: float | None) -> None:
        """Shows a line, and the finished part of the work, if it is known."""

    def close(self) -> None:
        """Ends the output."""


class Terminal:
    """Rewrites one line."""

    every = _IN_PLACE

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = False

    def show(self, text: str, done: float | None) -> None:
        self._out.write(f"\r\x1b[K{text}")
        self._out.flush()
        self._shown = True

    def close(self) -> None:
        if self._shown:
            self._out.write("\n")
            self._out.flush()


class Lines:
    """Writes a line now and then: to a file, a pipe, a log."""

    every = _BY_LINE

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, text: str, done: float | None) -> None:
        try:
            self._out.write(f"{text}\n")
            self._out.flush()
        except (OSError, ValueError):  # its reader has ended: the run continues
            pass

    def close(self) -> None:
        """Does nothing."""


class Notebook:
    """A bar that is updated in place."""

    every = 0.5

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, done: float | None) -> None:
        shown = notebook_display()
        bar = "<progress></progress>" if done is None else f'<progress max="1" value="{done:.4f}"></progress>'
        made = shown.HTML(f"<div>{bar} <code>{escape(text)}</code></div>")
        if self._handle is None:
            self._handle = shown.display(made, display_id=True)
        else:
            self._handle.update(made)

    def close(self) -> None:
        """Keeps the last state."""


class Progress:
    """Shows reports of a run, at the interval of the output."""

    def __init__(
        self, out: Out, *, bounded: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._bounded = bounded
        self._clock = clock
        self._began: float | None = None
        self._last = 0.0
        self._records = 0

    def show(self, report: Report, driver: Driver) -> None:
        """Shows a report, unless the last one is recent."""
        now = self._clock()
        if self._began is None:
            self._began = now
            if self._out.every > _IN_PLACE * 2:  # no line for a very short run
                self._last = now
        if now - self._last < self._out.every:
            return
        rate = (report.records_in - self._records) / (now - self._last) if self._last else 0.0
        self._last, self._records = now, report.records_in
        done = fraction(report) if self._bounded else None
        self._out.show(line(report, rate, driver.now(), done, now - self._began), done)

    def close(self) -> None:
        """Ends the line."""
        self._out.close()


def fraction(report: Report) -> float | None:
    """The part of the records that is read; None before it is known."""
    known = report.records_in + sum(report.lag.values())
    return report.records_in / known if known else None


def line(report: Report, rate: float, now: int, done: float | None, seconds: float) -> str:
    """One line: progress, rate, and diverted records.

    >>> line(Report("p", epochs=2, records_in=50), 10.0, 0, 0.25, 5.0)
    'p: 25%, 15 s left  epoch 2  50 records  10/s  watermark at its end'
    """
    parts = []
    if done is not None:
        left = f", {_span(seconds * (1 - done) / done)} left" if 0 < done < 1 else ""
        parts.append(f"{done:.0%}{left}")
    parts += [f"epoch {report.epochs:,}", f"{report.records_in:,} records", f"{rate:,.0f}/s"]
    parts.append(f"watermark {_lag(min(report.low_watermarks.values(), default=MAX_TIME), now)}")
    aside = {
        "late": sum(report.late.values()),
        "dropped": sum(report.dropped.values()),
        "diverted": sum(report.diverted.values()) + sum(report.failed.values()) + report.input_errors,
    }
    parts += [f"{count:,} {name}" for name, count in aside.items() if count]
    return f"{report.pipeline}: {'  '.join(parts)}"


def place(wanted: bool | None, *, bounded: bool, out: TextIO | None = None) -> Out | None:
    """The output of progress: as requested, or where it would be seen."""
    out = sys.stderr if out is None else out
    if wanted is False or out is None:
        return None
    if in_notebook():
        return Notebook()
    if out.isatty():
        return Terminal(out)
    # What keeps running writes no line every ten seconds forever, unless requested.
    return Lines(out) if wanted or bounded else None


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6_000 else f"{seconds / 3600:.1f} h"


def _lag(watermark: int, now: int) -> str:
    if watermark == MIN_TIME:
        return "not known yet"
    if watermark == MAX_TIME:
        return "at its end"
    seconds = (now - watermark) / SECOND
    if abs(seconds) < 3600:
        return f"{seconds:.1f} s behind"
    if abs(seconds) < 2 * 86_400:
        return f"{seconds / 3600:,.1f} h behind"
    return f"{seconds / 86_400:,.0f} days behind"
