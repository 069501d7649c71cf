"""The line of progress: what is in it, where it goes and how often."""

from __future__ import annotations

import io
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.status import Report
from millwheel.watch import progress
from millwheel.watch.progress import Lines, Notebook, Progress, Terminal, fraction, line, place

_DRIVER: Any = type("SomeDriver", (), {"now": lambda self: 0})()


def _report(read: int, left: int, **counts: dict[str, int]) -> Report:
    return Report("p", epochs=1, records_in=read, lag={"in": left}, **counts)  # type: ignore[arg-type]


def test_a_bounded_run_shows_percent_and_what_is_left_of_its_time() -> None:
    report = _report(250, 750)
    assert line(report, 25.0, 0, fraction(report), 10.0).startswith("p: 25%, 30 s left  ")


def test_the_end_is_a_hundred_percent_with_nothing_left() -> None:
    report = _report(1_000, 0)
    assert line(report, 25.0, 0, fraction(report), 10.0).startswith("p: 100%  epoch 1  1,000 records  25/s")


def test_what_went_aside_is_counted() -> None:
    report = _report(9, 0, late={"A": 3, "B": 1}, dropped={"A": 2}, diverted={"B": 1}, failed={"A": 4})
    report.input_errors = 5
    assert line(report, 0.0, 0, None, 1.0).endswith("4 late  2 dropped  10 diverted")


def test_a_watermark_of_days_ago_is_in_days() -> None:
    report = _report(9, 0)
    report.low_watermarks = {"A": 0}
    assert "watermark 40 days behind" in line(report, 0.0, 40 * mw.DAY, None, 1.0)


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(out: Any, seconds: list[float], *, bounded: bool = True) -> None:
    now = iter(seconds)
    shows = Progress(out, bounded=bounded, clock=lambda: next(now))
    for number in range(len(seconds)):
        shows.show(_report(number * 100, 900), _DRIVER)
    shows.close()


def test_a_terminal_s_line_is_rewritten() -> None:
    out = _Tty()
    _shown(Terminal(out), [100.0, 100.1, 100.5])
    assert out.getvalue().count("\r\x1b[K") == 2
    assert out.getvalue().count("\n") == 1


def test_elsewhere_there_is_a_line_every_ten_seconds() -> None:
    out = io.StringIO()
    _shown(Lines(out), [100.0, 105.0, 111.0, 112.0, 121.5])
    assert len(out.getvalue().splitlines()) == 2
    assert "\r" not in out.getvalue()


def test_a_run_that_is_over_at_once_prints_nothing() -> None:
    out = io.StringIO()
    _shown(Lines(out), [100.0, 103.0])
    assert out.getvalue() == ""


def test_a_pipe_that_nobody_reads_does_not_end_the_run() -> None:
    out = io.StringIO()
    out.close()
    _shown(Lines(out), [100.0, 120.0])


@pytest.mark.parametrize(
    ("wanted", "bounded", "terminal", "expected"),
    [
        (None, True, True, Terminal),
        (None, False, True, Terminal),
        (None, True, False, Lines),
        (None, False, False, type(None)),
        (True, False, False, Lines),
        (False, True, True, type(None)),
    ],
)
def test_where_progress_goes(wanted: bool | None, bounded: bool, terminal: bool, expected: type) -> None:
    assert type(place(wanted, bounded=bounded, out=_Tty() if terminal else io.StringIO())) is expected


def test_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    assert type(place(None, bounded=True, out=io.StringIO())) is Notebook
