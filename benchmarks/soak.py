"""Soak: many epochs at low load. Nothing may grow, and the last epoch is to be as fast as the first.

`run` returns the findings and leaves nothing behind; `main` also prints and writes them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millwheel as mw
from benchmarks import results
from benchmarks.pipelines import load
from benchmarks.pipelines.load import Wide
from benchmarks.processes import usages
from benchmarks.session import local_dirs, session

EPOCHS = 20_000
QUICK_EPOCHS = 400

_SAMPLES = 400
_LOOK_EVERY = 0.01  # seconds between looks at the number of epochs
# Epochs between samples, at least. Time is known to a look and to an epoch: over fewer epochs the quotient
# would be a multiple of the look, whatever the epochs take.
_LEAST_STEP = 25
_WARM_UP = 0.1  # of the epochs: the JVM compiles and pools fill, which is no leak
_SLOWEST = 2.0  # seconds an epoch may take before the run gives up, on average
_GROWTH = 0.10
_MB = 1 << 20
_WARM_SECONDS = 120.0
_BESIDE_SECONDS = 90.0
_CONTROL = 500_000  # additions: a few milliseconds, more than a slice of the scheduler's time
# What may be added to a tenth: small numbers wobble by more than that.
_ALLOWANCE = {
    "heap_bytes": 16 * _MB,
    "driver_bytes": 16 * _MB,
    "worker_bytes": 16 * _MB,
    "driver_threads": 2,
    "jvm_threads": 6,
    "workers": 1,
    "local_files": 20,
    "local_bytes": 4 * _MB,
    "store_bytes": 2 * _MB,
}


@dataclass(frozen=True)
class Sample:
    """Everything that could grow, at one moment."""

    seconds: float
    epochs: int
    epoch_ms: float
    """Since the sample before, waits for records included."""
    control_ms: float
    """A fixed piece of work that is none of ours: it tells a slower machine from a slower pipeline."""
    heap_bytes: int
    """In use, garbage too: its low points are what is alive."""
    jvm_bytes: int
    driver_bytes: int
    worker_bytes: int
    driver_threads: int
    jvm_threads: int
    workers: int
    local_files: int
    local_bytes: int
    store_bytes: int


def run(
    epochs: int = EPOCHS, *, wide: Wide = "alternate", limit: float | None = None, compare: bool = False
) -> dict[str, Any]:
    """Runs so many epochs and says what grew, comparing the first quarter with the last.

    It ends after ``limit`` seconds in any case. An active Spark session is used, and left running.
    """
    limit = epochs * _SLOWEST if limit is None else limit
    options: dict[str, Any] = {"compact_below": 0} if wide == "always" else {}
    with results.scratch("soak") as work, session(work) as spark:
        store = work / "store"
        with mw.start(load.pipeline(wide), store=store, spark=spark, progress=False, **options) as job:
            samples, done, live_first = _sample(job, spark, store, epochs, limit)
            live_last = _live_heap(spark)
            beside = _beside_a_new_one(job, work / "new", wide) if compare else None
    return {**_findings(samples, done, epochs, wide, live_first, live_last), "beside_a_new_one": beside}


def _beside_a_new_one(job: mw.Job, work: Path, wide: Wide) -> dict[str, Any]:
    """The epochs of the old pipeline against those of one that has just warmed up, in the same minutes.

    A machine changes its pace in the time that a soak takes; both feel it alike here.
    """
    command = [sys.executable, "-m", "benchmarks.soak", os.fspath(work), wide]
    root = Path(__file__).resolve().parent.parent
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            began, new_began = [float(word) for word in process.stdout.readline().split()]
            old_began = job.status().epochs
            ended, new_ended = [float(word) for word in process.stdout.readline().split()]
            old_ended = job.status().epochs
        finally:
            process.terminate()
    old = (ended - began) * 1e3 / (old_ended - old_began)
    new = (ended - began) * 1e3 / (new_ended - new_began)
    return {"old_epoch_ms": old, "new_epoch_ms": new, "ratio": old / new}


def run_beside(work: Path, wide: Wide) -> None:
    """A new pipeline of the same kind: says the time and its epochs when it is warm, and a while later."""
    pipeline = load.pipeline(wide)
    with (
        session(work) as spark,
        mw.start(pipeline, store=work / "store", spark=spark, progress=False) as job,
    ):
        for seconds in (_WARM_SECONDS, _BESIDE_SECONDS):
            job.wait(seconds)
            print(time.monotonic(), job.status().epochs, flush=True)
        job.wait(_BESIDE_SECONDS)  # until it is stopped: the other one is to be read in its company


def _sample(
    job: mw.Job, spark: SparkSession, store: Path, epochs: int, limit: float
) -> tuple[list[Sample], int, int]:
    """Samples until the epochs are done, how many were, and the live heap once the warm-up is over."""
    folders = local_dirs(spark)
    started = time.monotonic()
    samples: list[Sample] = []
    live = 0
    step = max(epochs // _SAMPLES, _LEAST_STEP)
    due, before, last = 0, 0, started
    while True:
        job.wait(_LOOK_EVERY)
        done = job.status().epochs
        now = time.monotonic()
        if done >= due and done > before:
            epoch_ms = (now - last) * 1e3 / (done - before)
            samples.append(_look(now - started, done, epoch_ms, spark, folders, store))
            # The look takes time of its own, which is not the epochs'.
            before, last, due = job.status().epochs, time.monotonic(), done + step
        if not live and done >= epochs * _WARM_UP:
            live = _live_heap(spark)
            before, last = job.status().epochs, time.monotonic()
        if done >= epochs or now - started > limit:
            return samples, done, live


def _look(
    seconds: float, epochs: int, epoch_ms: float, spark: SparkSession, folders: list[Path], store: Path
) -> Sample:
    by_role: dict[str, list[Any]] = {}
    for usage in usages():
        by_role.setdefault(usage.role, []).append(usage)
    workers = by_role.get("worker", [])
    jvm = by_role.get("jvm", [])
    files = [_size(path) for folder in folders for path in _files(folder)]
    return Sample(
        seconds=seconds,
        epochs=epochs,
        epoch_ms=epoch_ms,
        control_ms=_control(),
        heap_bytes=_heap(spark),
        jvm_bytes=sum(usage.rss for usage in jvm),
        driver_bytes=sum(usage.private for usage in by_role["driver"]),
        worker_bytes=sum(usage.private for usage in workers),
        driver_threads=sum(usage.threads for usage in by_role["driver"]),
        jvm_threads=sum(usage.threads for usage in jvm),
        workers=len(workers),
        local_files=len(files),
        local_bytes=sum(files),
        store_bytes=sum(_size(path) for path in _files(store)),
    )


def _control() -> float:
    """Milliseconds for a little work in this process."""
    started = time.perf_counter()
    sum(range(_CONTROL))
    return (time.perf_counter() - started) * 1e3


def _files(folder: Path) -> list[str]:
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]


def _size(path: str) -> int:
    """The bytes on the disk; 0 for a file that has gone meanwhile."""
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def _heap(spark: SparkSession) -> int:
    assert spark._jvm is not None
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory())


def _live_heap(spark: SparkSession) -> int:
    """What is alive. Collecting has side effects on Spark's cleaner, so it is done twice in a run only."""
    assert spark._jvm is not None
    spark._jvm.java.lang.System.gc()
    return _heap(spark)


def _findings(
    samples: list[Sample], done: int, epochs: int, wide: Wide, live_first: int, live_last: int
) -> dict[str, Any]:
    steady = [sample for sample in samples if sample.epochs > done * _WARM_UP] or samples
    quarter = max(len(steady) // 4, 1)
    first, last = steady[:quarter], steady[-quarter:]
    metrics: dict[str, dict[str, Any]] = {}
    for field in fields(Sample):
        if field.name in ("seconds", "epochs"):
            continue
        summary = min if field.name == "heap_bytes" else statistics.median
        was = summary([getattr(sample, field.name) for sample in first])
        is_now = summary([getattr(sample, field.name) for sample in last])
        metrics[field.name] = {"first": was, "last": is_now}
        allowance = _ALLOWANCE.get(field.name)
        if allowance is not None:
            metrics[field.name]["flat"] = is_now <= was * (1 + _GROWTH) + allowance
    live = live_last <= live_first * (1 + _GROWTH) + _ALLOWANCE["heap_bytes"]
    metrics["live_heap_bytes"] = {"first": live_first, "last": live_last, "flat": live}
    # Between two collections the low points of a heap depend on their timing: what is alive decides.
    del metrics["heap_bytes"]["flat"]
    slower = metrics["epoch_ms"]["last"] / max(metrics["epoch_ms"]["first"], 1e-9)
    machine = metrics["control_ms"]["last"] / max(metrics["control_ms"]["first"], 1e-9)
    return {
        "wanted_epochs": epochs,
        "epochs": done,
        "finished": done >= epochs,
        "wide": wide,
        "seconds": round(samples[-1].seconds, 1) if samples else 0.0,
        "metrics": metrics,
        "flat": all(metric.get("flat", True) for metric in metrics.values()),
        "epoch_time_ratio": slower,
        "machine_time_ratio": machine,
        "machine_steady": abs(machine - 1) <= _GROWTH,
        "within_10_percent": slower <= 1 + _GROWTH,
        "samples": [asdict(sample) for sample in samples],
    }


def main(*, epochs: int | None, quick: bool, wide: Wide = "alternate") -> dict[str, Any]:
    """Runs it, prints a table, and writes the artifacts."""
    result = run(epochs or (QUICK_EPOCHS if quick else EPOCHS), wide=wide, compare=not quick)
    name = results.name("soak", quick=quick)
    results.save(name, result)
    rows = []
    for metric_name, metric in result["metrics"].items():
        scale = _MB if metric_name.endswith("_bytes") else 1
        judged = {True: "flat", False: "GROWS", None: ""}[metric.get("flat")]
        label = metric_name.replace("_bytes", "_MB")
        rows.append([label, float(metric["first"] / scale), float(metric["last"] / scale), judged])
    print(results.table(["", "first quarter", "last quarter", "verdict"], rows))
    print(
        f"{results.verdict(result['finished'])}  {result['epochs']:,} of {result['wanted_epochs']:,} epochs "
        f"in {result['seconds']:,} seconds, wide epochs: {wide}"
    )
    print(f"{results.verdict(result['flat'])}  nothing grows")
    beside = result["beside_a_new_one"]
    if beside is not None:
        print(
            f"{results.verdict(beside['ratio'] <= 1 + _GROWTH)}  beside a pipeline that has just started, in "
            f"the same minutes, its epochs take {beside['ratio']:.2f} times as long "
            f"({beside['old_epoch_ms']:.1f} ms, {beside['new_epoch_ms']:.1f} ms), target at most 1.10"
        )
    # A machine that changed its own pace says nothing about ours, for or against.
    judged = results.verdict(result["within_10_percent"]) if result["machine_steady"] else "UNCLEAR"
    print(
        f"{judged}  an epoch of the last quarter takes "
        f"{result['epoch_time_ratio']:.2f} times one of the first, target at most 1.10; the machine "
        f"itself took {result['machine_time_ratio']:.2f} times as long for the same work"
    )
    _chart(name, result["samples"])
    return result


def _chart(name: str, samples: list[dict[str, Any]]) -> None:
    x = [sample["epochs"] for sample in samples]

    def line(field: str, scale: float = 1) -> tuple[list[float], list[float]]:
        return x, [sample[field] / scale for sample in samples]

    from benchmarks import chart  # here: the short form in the tests needs no charts

    chart.lines(
        results.artifact(f"{name}.png"),
        "Soak",
        "epochs",
        {
            "epoch, ms": {"epoch": line("epoch_ms")},
            "memory, MB": {
                "JVM heap in use": line("heap_bytes", _MB),
                "JVM RSS": line("jvm_bytes", _MB),
                "driver, private": line("driver_bytes", _MB),
                "workers, private": line("worker_bytes", _MB),
            },
            "threads": {"JVM": line("jvm_threads"), "driver": line("driver_threads")},
            "Spark's files": {"files": line("local_files")},
            "disk, MB": {"store": line("store_bytes", _MB), "Spark": line("local_bytes", _MB)},
        },
    )


if __name__ == "__main__":
    run_beside(Path(sys.argv[1]), sys.argv[2])  # type: ignore[arg-type]
