"""Pathway: the windowed count in its own operators, no Python in its path. Runs in Pathway's environment.

    python pathway_windows.py SOURCE OUT RECOVERY

A window is emitted once, when the newest time that was read is two seconds past its end, so ``SOURCE`` has
what is needed for that: files in the order of time. PATHWAY_THREADS is the number of workers. Without a
licence key there is no telemetry, and none is set.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pathway as pw

_SECOND = 1_000_000
_DISORDER = 2 * _SECOND
_COMMIT = 1_000  # milliseconds between two commits


class Query(pw.Schema):
    """What is used of a line."""

    time: int
    query: str


def main(source: Path, out: Path, recovery: Path) -> None:
    """Runs the job to the end of its input."""
    out.mkdir()
    logs = pw.io.jsonlines.read(
        source, schema=Query, mode="static", autocommit_duration_ms=_COMMIT, name="logs"
    )
    counted = logs.windowby(
        logs.time,
        window=pw.temporal.tumbling(duration=_SECOND),
        instance=logs.query,
        behavior=pw.temporal.exactly_once_behavior(shift=_DISORDER),
    ).reduce(
        key=pw.this._pw_instance,
        window=pw.this._pw_window_start // _SECOND,
        count=pw.reducers.count(),
    )
    pw.io.jsonlines.write(counted, out / "part-0.jsonl")
    backend = pw.persistence.Backend.filesystem(recovery)
    persistence = pw.persistence.Config(backend, snapshot_interval_ms=_COMMIT)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=persistence)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
