"""A day of edits of Wikipedia: which articles did people suddenly care about? The five most notable spikes.

It is a sample of a real day, 12 September 2015, of all languages. Robots and pages other than articles are
left out. Every article begins as never seen: a spike is an article with far more edits than articles have.
"""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks import chart, results
from benchmarks.session import session
from millwheel.apps.zeitgeist.pipeline import count_anomalies
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.time import HOUR, MINUTE
from tests.servers.processes import Unavailable

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "wikipedia"
_BEGIN = 1_442_016_000 * mw.SECOND
_SETTINGS = Settings(width=30 * MINUTE, warmup=6, begin=_BEGIN, fewest=5, rare=0.05)
"""An article has an edit of this sample in a day: twenty of them in half an hour have one."""
_NOTABLE = 5


def article(record: mw.Record) -> Any:
    """The title of an article that a person has edited."""
    value = record.value
    if value["isRobot"] or value["namespace"] != "Main":
        return mw.SKIP
    return value["page"]


def run(*, quick: bool = False) -> dict[str, Any]:
    """Runs the pipeline over the day, prints the spikes and draws them; `Unavailable` without the data."""
    if not DATA.is_dir():
        raise Unavailable("the edits are not there: put the day's file into ../shared/data/wikipedia")
    windows, episodes, anomalies = mw.sinks.Collect(), mw.sinks.Collect(), mw.sinks.Collect()
    p = count_anomalies(
        mw.injectors.Files(DATA / "*.json.gz", timestamp="time", unit="iso"),
        {"WindowCounter": article},
        _SETTINGS,
    )
    p.sink("windows", windows)
    p.sink("anomalies", anomalies)
    p.sink("episodes", episodes)
    with results.scratch("wikipedia") as work, session(work) as spark:
        began = time.perf_counter()
        report = mw.run(p, store=work / "store", spark=spark, progress=False)
        seconds = time.perf_counter() - began
    final = {(r.key, r.value["start"]): r.value for r in (*anomalies.records, *episodes.records)}
    counts = _counts(windows.records, {key for key, _ in final})
    spikes = [{**told, "edits": _edits(counts[told["key"]], told)} for told in final.values()]
    notable = sorted(spikes, key=lambda told: (-told["edits"], -told["confidence"]))[:_NOTABLE]
    result = {
        "quick": quick,
        "edits": report.records_in,
        "seconds": seconds,
        "articles": len({record.key for record in windows.records}),
        "spikes": len(anomalies.records),
        "notable": notable,
    }
    label = results.name("wikipedia", quick=quick)
    results.save(label, result)
    print(f"{report.records_in:,} edits, {result['articles']:,} articles, {result['spikes']} spikes")
    rows = [
        [
            told["key"],
            _clock(told["start"]),
            _clock(told.get("end")),
            told["edits"],
            f"{told['confidence']:.1f}",
        ]
        for told in notable
    ]
    print(results.table(["article", "from (UTC)", "to", "edits meanwhile", "confidence"], rows))
    hours = [bucket * _SETTINGS.width / HOUR for bucket in range(24 * HOUR // _SETTINGS.width)]
    chart.lines(
        results.artifact(f"{label}.png"),
        "12 September 2015: edits of the articles with the most notable spikes, in half an hour",
        "hour of the day (UTC)",
        {told["key"][:24]: {"edits": (hours, counts[told["key"]])} for told in notable},
    )
    return result


def _counts(windows: list[mw.Record], keys: set[str]) -> dict[str, list[int]]:
    counts = {key: [0] * (24 * HOUR // _SETTINGS.width) for key in keys}
    for record in windows:
        if record.key in counts:
            bucket, count = record.value
            counts[record.key][bucket - _BEGIN // _SETTINGS.width] = count
    return counts


def _edits(counts: list[int], told: dict[str, Any]) -> int:
    """How many there were while the spike lasted, or until the day was over."""
    first = (told["start"] - _BEGIN) // _SETTINGS.width
    last = (told["end"] - _BEGIN) // _SETTINGS.width if "end" in told else len(counts)
    return sum(counts[first:last])


def _clock(moment: int | None) -> str:
    if moment is None:
        return "-"
    return f"{datetime.datetime.fromtimestamp(moment // mw.SECOND, datetime.timezone.utc):%H:%M}"
