"""The demo: anomalies in three days of search queries (paper 2, Fig. 1).

The queries are generated, so it is known what is to be found: the demo ends by comparing.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, TextIO

from millwheel.apps.zeitgeist.feed import Counts
from millwheel.apps.zeitgeist.findings import Findings, compare
from millwheel.apps.zeitgeist.html_report import write_report
from millwheel.apps.zeitgeist.pipeline import count_anomalies
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.apps.zeitgeist.sparkline import sparkline
from millwheel.apps.zeitgeist.synthetic import START, Queries, Traffic, region_key
from millwheel.apps.zeitgeist.terminal import View, moment
from millwheel.launch import start
from millwheel.master.status import Report
from millwheel.model.keys import by
from millwheel.model.pipeline import Pipeline
from millwheel.model.time import DAY, MAX_TIME, MINUTE
from millwheel.sinks import Collect

_DAYS = 3
_WIDTHS = (5, 10, 15, 20, 30)  # minutes; wider buckets where there are fewer queries
_DENSITY = 330  # queries in a bucket: with fewer, the dips of a busy query would be chance
_REDRAW = 0.2  # seconds
_EPOCH = 2.0  # seconds: short enough to look alive, long enough that a key's state is written seldom


def traffic(records: int, seed: int) -> Traffic:
    """Three days of ``records`` queries, in buckets that are wide enough for them.

    >>> traffic(300_000, 1).width // MINUTE, traffic(100_000, 1).width // MINUTE
    (5, 15)
    """
    dense = (width for width in _WIDTHS if records * width * MINUTE >= _DENSITY * _DAYS * DAY)
    return Traffic(seed=seed, records=records, days=_DAYS, width=next(dense, _WIDTHS[-1]) * MINUTE)


def pipeline(traffic: Traffic, counts: Counts, anomalies: Collect) -> Pipeline:
    """Queries counted by their text and by region; anomalies of both."""
    settings = Settings(width=traffic.width, begin=START)
    p = count_anomalies(Queries(traffic), {"WindowCounter": by("query"), "Regions": region_key}, settings)
    p.sink("windows", counts)
    p.sink("anomalies", anomalies)
    return p


def demo(
    records: int,
    seed: int,
    store: str,
    report: Path | None,
    out: TextIO = sys.stdout,
    ui: str | None = None,
) -> dict[str, Any]:
    """Runs the demo, with a live view if ``out`` is a terminal; returns its result."""
    what = traffic(records, seed)
    counts, anomalies = Counts(what), Collect()
    from millwheel.spark.session import local_session

    local_session()  # before the clock starts: what is timed is the pipeline
    view = View(out, what, counts) if out.isatty() else None
    began = time.perf_counter()
    p = pipeline(what, counts, anomalies)
    with start(p, store=store, progress=False, target=_EPOCH, ui=ui) as job:
        while job.wait(_REDRAW) is None:
            status = job.status()
            if view is not None:
                view.show(status, [record.value for record in anomalies.records])
            if set(status.low_watermarks.values()) == {MAX_TIME}:
                break
        status = job.stop()
    seconds = time.perf_counter() - began
    if view is not None:
        view.clear()
    findings = compare(what, [record.value for record in anomalies.records])
    summary = _summary(what, status, counts, findings, seconds)
    if report is not None:
        write_report(report, what, counts, findings, summary)
        summary["report"] = str(report)
    return summary


def _summary(
    traffic: Traffic, status: Report, counts: Counts, findings: Findings, seconds: float
) -> dict[str, Any]:
    return {
        "records": status.records_in,
        "seconds": round(seconds, 2),
        "records_per_second": round(status.records_in / seconds),
        "epochs": status.epochs,
        "late": status.late["WindowCounter"],
        "key_buckets": counts.windows,
        "bucket_minutes": traffic.width // MINUTE,
        "planted": [
            {
                "key": finding.planted.key,
                "kind": finding.planted.kind,
                "began": moment(START + finding.planted.first * traffic.width),
                "buckets_until_told": None if finding.delay is None else round(finding.delay, 1),
                "counts": list(counts.series(finding.planted.key)),
            }
            for finding in findings.found
        ],
        "false_alarms": list(findings.false),
    }


def tell(summary: dict[str, Any]) -> str:
    """What came of a run, for people."""
    found = sum(planted["buckets_until_told"] is not None for planted in summary["planted"])
    lines = [
        f"{summary['records']:,} queries of three days in {summary['seconds']} s "
        f"({summary['records_per_second']:,} a second, {summary['epochs']} epochs), "
        f"{summary['key_buckets']:,} counts of a query in {summary['bucket_minutes']} minutes, "
        f"{summary['late']} late",
        "",
    ]
    for planted in summary["planted"]:
        delay = planted["buckets_until_told"]
        told = "NOT FOUND" if delay is None else f"reported after {delay} buckets"
        mark = "▲" if planted["kind"] == "spike" else "▼"
        lines.append(
            f"{mark} {planted['key']:24.24} {sparkline(planted['counts'], 48)} {planted['began']}, {told}"
        )
    rate = len(summary["false_alarms"]) * 100_000 / max(summary["key_buckets"], 1)
    lines += [
        "",
        f"{found} of {len(summary['planted'])} planted anomalies found; "
        f"{len(summary['false_alarms'])} false alarms ({rate:.1f} in 100,000 counts)",
    ]
    lines += [f"  false: {message['kind']} of {message['key']}" for message in summary["false_alarms"]]
    if "report" in summary:
        lines.append(f"The plots are in {summary['report']}")
    return "\n".join(lines)
