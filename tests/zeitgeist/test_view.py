"""The demo's live view and its report: what a person sees."""

from __future__ import annotations

import io
from pathlib import Path

import millwheel as mw
from millwheel.apps.zeitgeist.feed import Counts
from millwheel.apps.zeitgeist.findings import compare
from millwheel.apps.zeitgeist.html_report import write_report
from millwheel.apps.zeitgeist.synthetic import START, Traffic
from millwheel.apps.zeitgeist.terminal import View
from millwheel.master.status import Report

TRAFFIC = Traffic(seed=1, records=20_000, width=900_000_000)


def filled() -> Counts:
    counts = Counts(TRAFFIC)
    first = START // TRAFFIC.width
    keys = ["cat videos", *(planted.key for planted in TRAFFIC.planted)]
    windows = [mw.Record([first + n, n % 9], START, key) for key in keys for n in range(TRAFFIC.buckets)]
    counts.write(1, 0, windows)
    counts.write(1, 0, windows)  # a retried epoch
    assert counts.windows == len(windows)
    return counts


def message(kind: str, key: str, bucket: int) -> dict[str, object]:
    time = START + bucket * TRAFFIC.width
    return {"kind": kind, "key": key, "start": time, "found": time + TRAFFIC.width}


def test_the_view_shows_watermark_throughput_and_sparklines_and_draws_over_itself() -> None:
    out = io.StringIO()
    view = View(out, TRAFFIC, filled())
    low = START + 100 * TRAFFIC.width
    report = Report(epochs=7, records_in=12_345, low_watermarks={"Detector": low})
    view.show(report, [message("spike", "earthquake", 90)])
    text = out.getvalue()
    assert "12,345" in text
    assert "Fri 01:00" in text
    assert "earthquake" in text
    assert "▲" in text
    assert "█" in text
    view.show(report, [])
    assert out.getvalue().removeprefix(text).startswith("\x1b[")
    view.clear()
    assert out.getvalue().endswith("\x1b[J")


def test_the_report_needs_nothing_but_itself(tmp_path: Path) -> None:
    counts = filled()
    first, *others = TRAFFIC.planted
    told = [message(first.kind, first.key, first.first), message("dip", "<b>music</b>", 50)]
    findings = compare(TRAFFIC, told)
    assert [planted.key for planted in findings.missed] == [planted.key for planted in others]
    summary = {"records": 20_000, "key_buckets": 9_000, "seconds": 3.0, "records_per_second": 6_667}
    path = tmp_path / "new" / "report.html"
    write_report(path, TRAFFIC, counts, findings, summary)
    text = path.read_text()
    assert text.count("<svg") == 5 + len(TRAFFIC.planted) + 1
    assert "&lt;b&gt;music" in text
    assert "<b>music" not in text
    assert "src=" not in text
    assert "href=" not in text
    assert text.count("not found") == len(others)
