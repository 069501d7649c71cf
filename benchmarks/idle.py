"""What an idle pipeline costs: CPU time of the driver, the JVM and the Python workers, of one core.

Three spans in one session: Spark without a pipeline; a pipeline that waits for files with its resident task
there; and the same after that task has ended. What a pipeline costs is what it adds to Spark alone.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

import millwheel as mw
from benchmarks import results, writer
from benchmarks.pipelines import numbers
from benchmarks.session import session
from millwheel.spark.resident import IDLE_AFTER

GOAL = 0.02
"""Of one core, added by an idle pipeline."""
_SETTLING = 10.0  # seconds in which Spark's JVM compiles, and collects what its start left
_PRIMING = 20  # epochs: the resident task runs after the first few
_PATIENCE = 60.0
_SPAN = 1.0  # seconds: looking at the processes costs 1 to 2 ms
_MARGIN = 1.5  # seconds of the resident task's idle time that are not measured


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measures the three, prints a table, and writes the artifact."""
    seconds, settling = (3.0, 3.0) if quick else (60.0, _SETTLING)
    found: dict[str, float] = {}
    with results.scratch("idle") as work, session(work) as spark:
        source, out = work / "in", work / "out"
        source.mkdir()
        out.mkdir()
        spark.sparkContext.parallelize([0], 1).map(abs).collect()
        time.sleep(settling)
        with mw.start(
            numbers.pipeline(source, out), store=work / "store", spark=spark, progress=False
        ) as job:
            _prime(source, out, job)
            found["pipeline, resident task"] = _used(IDLE_AFTER - 2 * _MARGIN)
            time.sleep(2 * _MARGIN + settling)  # the task ends, and what follows from that
            found["pipeline"] = _used(seconds)
            job.stop()
        time.sleep(settling)
        found["Spark alone"] = _used(seconds)
    added = found["pipeline"] - found["Spark alone"]
    result = {
        "quick": quick,
        "seconds": seconds,
        "of_a_core": {name: round(used, 4) for name, used in found.items()},
        "added": round(added, 4),
        "goal": GOAL,
        "passed": added < GOAL,
    }
    results.save(results.name("idle", quick=quick), result)
    print(results.table(["idle", "% of a core"], [[name, 100 * used] for name, used in found.items()]))
    print(
        f"{results.verdict(added < GOAL)}  a pipeline adds {100 * added:.1f}% of a core to Spark alone, "
        f"goal less than {100 * GOAL:.0f}%"
    )
    return result


def _prime(source: Path, out: Path, job: mw.Job) -> None:
    """Runs some epochs, each when the last one is done."""
    for number in range(_PRIMING):
        writer.send(source, f"prime-{number}", [number], random.Random(number))
        deadline = time.monotonic() + _PATIENCE
        while job.status().records_in <= number:
            if time.monotonic() > deadline:
                raise TimeoutError(f"record {number} did not arrive within {_PATIENCE:.0f} seconds")
            time.sleep(0.01)


def _used(seconds: float) -> float:
    """The CPU time of this process and its descendants, as a part of one core.

    Summed over short spans, by process: what one that ends has used before is not to be subtracted.
    """
    began = time.monotonic()
    used, before = 0.0, _cpu_times()
    while time.monotonic() < began + seconds:
        time.sleep(_SPAN)
        now = _cpu_times()
        used += sum(spent - before.get(process, 0.0) for process, spent in now.items())
        before = now
    return used / (time.monotonic() - began)


def _cpu_times() -> dict[int, float]:
    """By process: seconds of CPU time, without those of its children."""
    this = psutil.Process()
    found = {}
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended meanwhile
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found
