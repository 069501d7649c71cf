"""Zeitgeist with many keys: the bytes of the store for each key, and the memory of the processes.

Each key measures one value in a bucket, or is counted once in it. The row of a key grows until it is judged,
after ``warmup`` buckets, and not any more: with two of them, four buckets leave rows as large as any.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import millwheel as mw
from benchmarks import results
from benchmarks.processes import Peaks
from benchmarks.session import session
from millwheel.apps.zeitgeist.pipeline import count_anomalies, value_anomalies
from millwheel.apps.zeitgeist.settings import Kind, Settings

KEYS = 1_000_000
QUICK_KEYS = 5_000
_BUCKETS = 4
_WIDTH = 5 * mw.MINUTE
_KINDS: tuple[Kind, ...] = ("values", "counts")
_MB = 1 << 20


def write(folder: Path, keys: int) -> None:
    """A file for each bucket, with one record of each key."""
    folder.mkdir()
    for bucket in range(_BUCKETS):
        with open(folder / f"{bucket}.jsonl", "w") as file:
            for key in range(keys):
                moment = bucket * _WIDTH + key * _WIDTH // keys
                file.write(f'{{"time":{moment},"key":"key-{key:07}","load":{(key + 7 * bucket) % 100}}}\n')


def watch(kind: Kind, source: Path, work: Path, memory: str) -> dict[str, Any]:
    """Runs it over the files, on Spark with LMDB; returns sizes and peaks."""
    settings = Settings(kind=kind, width=_WIDTH, warmup=2)
    files = mw.injectors.Files(source / "*.jsonl", timestamp="time", unit="us", slack=mw.SECOND)
    if kind == "values":
        p = value_anomalies(files, mw.by("key"), "load", settings)
    else:
        p = count_anomalies(files, {"WindowCounter": mw.by("key")}, settings)
    started = time.monotonic()
    with session(work, memory=memory) as spark, Peaks() as peaks:
        report = mw.run(p, store=work / "store", spark=spark, close=False, progress=False)
    store = sum(path.stat().st_blocks * 512 for path in (work / "store").rglob("*") if path.is_file())
    return {
        "records": report.records_in,
        "dropped": sum(report.dropped.values()),
        "seconds": round(time.monotonic() - started, 1),
        "store_bytes": store,
        "resident": _largest(peaks, peaks.rss),
        "private": _largest(peaks, peaks.private),
    }


def _largest(peaks: Peaks, found: dict[tuple[str, int], int]) -> dict[str, int]:
    """By role: the peak of its largest process."""
    return {role: max(found[role, pid] for pid in peaks.of(role)) for role in ("driver", "jvm", "worker")}


def main(*, keys: int | None, quick: bool) -> dict[str, Any]:
    """Runs both kinds, prints a table, and writes the figures."""
    number = keys or (QUICK_KEYS if quick else KEYS)
    found: dict[str, Any] = {}
    with results.scratch("watched") as work:
        write(work / "in", number)
        for kind in _KINDS:
            found[kind] = watch(kind, work / "in", work / kind, "2g")
            print(f"{kind}: {found[kind]}", flush=True)
    result = {"quick": quick, "keys": number, "kinds": found}
    results.save(results.name("watched", quick=quick), result)
    rows = [
        [
            kind,
            one["records"],
            one["seconds"],
            round(one["store_bytes"] / _MB),
            round(one["store_bytes"] / number),
            *(
                f"{one['private'][role] / _MB:,.0f} of {one['resident'][role] / _MB:,.0f}"
                for role in one["private"]
            ),
        ]
        for kind, one in found.items()
    ]
    head = [
        "kind",
        "records",
        "seconds",
        "store MB",
        "bytes a key",
        "driver MB",
        "jvm MB",
        "largest worker MB",
    ]
    print(f"{number:,} keys; of the memory, its own of all that is resident:")
    print(results.table(head, rows))
    return result
