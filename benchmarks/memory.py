"""Memory: many distinct keys with a little state each, through a small driver and small workers."""

from __future__ import annotations

import time
from typing import Any

import millwheel as mw
from benchmarks import chart, results
from benchmarks.pipelines import distinct
from benchmarks.processes import Peaks
from benchmarks.session import session

KEYS = 10_000_000
QUICK_KEYS = 200_000
_DRIVER_MEMORY = "4g"
_WORKER_LIMIT = 1 << 30
_TIME_LIMIT = 2_100.0  # seconds; what was reached by then is reported
_LOOK_EVERY = 1.0  # seconds between points of the chart
_MB = 1 << 20


def run(keys: int = KEYS, limit: float = _TIME_LIMIT) -> dict[str, Any]:
    """Runs it, and returns the peaks by process and the progress over time."""
    progress: list[tuple[float, int]] = []
    with (
        results.scratch("memory") as work,
        session(work, memory=_DRIVER_MEMORY) as spark,
        Peaks() as peaks,
        mw.start(distinct.pipeline(keys), store=work / "store", spark=spark, progress=False) as job,
    ):
        started = time.monotonic()
        while True:
            ended = job.wait(_LOOK_EVERY) is not None
            status = job.status()
            seconds = time.monotonic() - started
            progress.append((seconds, status.records_in))
            if ended or status.records_in >= keys or seconds > limit:
                break
        report = job.stop()
        store = sum(path.stat().st_blocks * 512 for path in (work / "store").rglob("*") if path.is_file())
    workers = peaks.of("worker")
    worker_private = [peaks.private["worker", pid] for pid in workers]
    done = report.records_in >= keys and report.user.get("keys") == keys
    return {
        "keys": keys,
        "done": done,
        "keys_in_state": report.user.get("keys", 0),
        "epochs": report.epochs,
        "seconds": round(seconds, 1),
        "records_per_second": round(report.records_in / seconds),
        "store_bytes": store,
        "worker_limit": _WORKER_LIMIT,
        "processes": [
            {
                "role": role,
                "pid": pid,
                "peak_rss": peaks.rss[role, pid],
                "peak_private": peaks.private[role, pid],
            }
            for role in ("driver", "jvm", "daemon", "worker")
            for pid in peaks.of(role)
        ],
        "workers_within_limit": bool(workers) and max(worker_private) <= _WORKER_LIMIT,
        "workers_rss_within_limit": bool(workers)
        and max(peaks.rss["worker", pid] for pid in workers) <= _WORKER_LIMIT,
        "progress": [(round(at, 1), records) for at, records in progress],
    }


def main(*, keys: int | None, quick: bool) -> dict[str, Any]:
    """Runs it, prints a table, and writes the artifacts."""
    result = run(keys or (QUICK_KEYS if quick else KEYS))
    name = results.name("memory", quick=quick)
    results.save(name, result)
    rows = [
        [part["role"], part["pid"], part["peak_rss"] / _MB, part["peak_private"] / _MB]
        for part in result["processes"]
    ]
    print(results.table(["process", "pid", "peak RSS MB", "of that private MB"], rows))
    print(
        f"{result['keys_in_state']:,} keys in state after {result['seconds']:,} seconds, "
        f"{result['records_per_second']:,} records/s, {result['epochs']:,} epochs, "
        f"store {result['store_bytes'] / _MB:,.0f} MB"
    )
    print(f"{results.verdict(result['done'])}  all {result['keys']:,} keys went through a driver of 4 GB")
    print(f"{results.verdict(result['workers_rss_within_limit'])}  RSS of each worker at most 1 GB")
    print(
        f"{results.verdict(result['workers_within_limit'])}  private memory of each worker at most 1 GB: RSS "
        "less the pages of the mapped store, which the system can take back"
    )
    times = [at for at, _ in result["progress"]]
    chart.lines(
        results.artifact(f"{name}.png"),
        f"{result['keys']:,} distinct keys",
        "seconds",
        {"records": {"records": (times, [records for _, records in result["progress"]])}},
    )
    return result
