"""The work of the driver for one epoch with up to 4,096 slots, and the cost of a Spark task beside it.

Driver, planner, journal, authority and balancer are the real ones. The executor is simulated: it answers with
one report for each interval and computation, encoded as tasks encode them. Making these reports is not
counted; decoding them is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import millwheel as mw
from benchmarks import chart, results
from benchmarks.session import session
from millwheel.master.balancer import Balancer
from millwheel.master.collection import paused_collection
from millwheel.master.driver import Driver
from millwheel.master.intervals import shard_count
from millwheel.master.options import Options
from millwheel.model.graph import Graph, build
from millwheel.store.base import Guard
from millwheel.store.memory import MemoryShard, MemoryStore
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport, NodeReport

_TABLETS = 4_096
_SLOTS = (2, 10, 64, 100, 1_000, 4_096)
_COMPUTATIONS = (10, 100)
_LEVELS = 5
_EPOCHS = 12
_LARGE = 10_000  # slots times computations: beyond, an epoch takes seconds, and two are enough
_TASKS = (100, 1_000)


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measures each size, prints a table, and writes the artifacts."""
    slots = (2, 64) if quick else _SLOTS
    rows: list[dict[str, Any]] = []
    for computations in _COMPUTATIONS:
        for count in slots:
            row = measure(count, computations, epochs=4 if quick else _EPOCHS)
            rows.append(row)
            print(
                f"{count} slots, {computations} computations: {row['cpu_ms']:.1f} ms of CPU an epoch, "
                f"{row['measuring_ms']:.1f} where tablets are measured; {row['plan_bytes']:,} bytes of plan, "
                f"{row['journal_bytes']:,} of journal, {row['report_bytes']:,} of reports",
                flush=True,
            )
    task = _spark_task((50, 200) if quick else _TASKS)
    print(f"a Spark task that does nothing in Python takes {task:.2f} ms")
    result = {"quick": quick, "levels": _LEVELS, "tablets": _TABLETS, "rows": rows, "spark_task_ms": task}
    label = results.name("scale", quick=quick)
    results.save(label, result)
    keys = ["slots", "computations", "intervals", "cpu_ms", "measuring_ms", "plan_bytes", "journal_bytes"]
    keys.append("report_bytes")
    print(results.table(keys, [[row[key] for key in keys] for row in rows]))
    draw(result, label)
    return result


def draw(result: dict[str, Any], label: str) -> None:
    """Draws the chart of a result."""
    rows = result["rows"]

    def line(key: str, computations: int, factor: float = 1.0) -> tuple[list[float], list[float]]:
        mine = [row for row in rows if row["computations"] == computations]
        return [row["slots"] for row in mine], [row[key] * factor for row in mine]

    slots = sorted({row["slots"] for row in rows})
    tasks = {
        "Spark, tasks that do nothing": (
            slots,
            [count * _LEVELS * result["spark_task_ms"] for count in slots],
        )
    }
    chart.lines(
        results.artifact(f"{label}.png"),
        f"work of the driver for an epoch of {_LEVELS} levels",
        "slots",
        {
            "CPU, ms": {f"{n} computations": line("cpu_ms", n) for n in _COMPUTATIONS} | tasks,
            "journal, kB": {f"{n} computations": line("journal_bytes", n, 1e-3) for n in _COMPUTATIONS},
            "reports, kB": {f"{n} computations": line("report_bytes", n, 1e-3) for n in _COMPUTATIONS},
        },
    )


def measure(slots: int, computations: int, epochs: int = _EPOCHS) -> dict[str, Any]:
    """The driver's CPU time and bytes for an epoch, the median of several."""
    epochs = epochs if slots * computations <= _LARGE else 2
    plain = _epochs(slots, computations, epochs, measuring=False)
    return {**plain, "measuring_ms": _epochs(slots, computations, 1, measuring=True)["cpu_ms"]}


def _epochs(slots: int, computations: int, epochs: int, *, measuring: bool) -> dict[str, Any]:
    """The same without a balancer, or of epochs in which a balancer measures every tablet."""
    graph = build(_pipeline(computations))
    store = _Store(shard_count(slots, _TABLETS))
    clock = iter(range(10**15, 10**16, 1_000_000))
    balancer = Balancer(1, len(store.shards), slots, store.tablets) if measuring else None
    options = Options(slots=1, compact_below=0)
    driver = Driver(graph, store, options, clock=clock.__next__, owner="a benchmark", balancer=balancer)
    driver.rescale(slots)
    executor = _Simulated(graph)
    took: list[float] = []
    journal_bytes = report_bytes = plan_bytes = 0
    for _ in range(epochs + 1):  # the first one is not counted: it is on new intervals
        before, made, started = store.journal.written, executor.cpu, time.process_time()
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
        took.append((time.process_time() - started - (executor.cpu - made)) * 1e3)
        plan_bytes, report_bytes = len(plan.to_bytes()), executor.bytes
        journal_bytes = store.journal.written - before
        if measuring:
            assert plan.weigh
            time.sleep(0.5)  # tablets are measured at most every half second
    driver.close()
    return {
        "slots": slots,
        "computations": computations,
        "intervals": sum(map(len, driver.layout.intervals)),
        "cpu_ms": statistics.median(took[1:]),
        "plan_bytes": plan_bytes,
        "journal_bytes": journal_bytes,
        "report_bytes": report_bytes,
    }


class _Counting(MemoryShard):
    """A shard that counts the bytes that are written to it."""

    written = 0

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        entries = list(puts)
        self.written += sum(len(key) + len(value) for key, value in entries)
        super().write(entries, deletes, guard, kept=kept)


class _Store(MemoryStore):
    """A store of 4,096 tablets for the driver; no step runs on it."""

    journal: _Counting

    def __init__(self, shards: int) -> None:
        super().__init__(shards, _TABLETS)
        self.journal = _Counting([])


class _Ticks(mw.Injector):
    """One record for each poll, and a watermark that follows."""

    def __init__(self) -> None:
        self._end = 0

    def poll(self) -> Mapping[str, int]:
        self._end += 1
        return {"all": self._end}

    def read(self, partition: str, start: Any, end: Any) -> list[mw.Record]:
        return []

    def low_watermark(self, partition: str, offset: Any) -> int:
        return int(offset or 0)


class _Nothing(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        """Is never called."""


def _pipeline(computations: int) -> mw.Pipeline:
    """Computations in five levels: one that the level is keyed for, the others chained to it."""
    p = mw.Pipeline("scale")
    p.inject("stream-0", _Ticks())
    for level in range(1, _LEVELS + 1):
        outputs = [f"stream-{level}", f"chained-{level}"]
        p.add(
            _Nothing(), name=f"first-{level}", inputs={f"stream-{level - 1}": mw.by("key")}, outputs=outputs
        )
        for number in range(1, computations // _LEVELS):
            p.add(_Nothing(), name=f"c-{level}-{number}", inputs={f"chained-{level}": mw.by_key}, outputs=[])
    return p


class _Simulated:
    """Answers with the reports of tasks in which every interval has some records."""

    job: int | None = None

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.cpu = 0.0
        """CPU seconds for making reports: the tasks' work, not the driver's."""
        self.bytes = 0
        """Of the last epoch's reports."""

    def execute(self, plan: Plan) -> list[Frame]:
        started = time.process_time()
        reached = max(part.watermark for part in plan.ranges)
        reports: list[list[dict[str, Any]]] = [[] for _ in range(plan.slots)]
        for task in range(plan.tasks):
            mine = [part for part in plan.ranges if part.task == task]
            newest = [[part.source, part.partition, reached, 1] for part in mine]
            injected = IntervalReport(0, task, 0, records_in=len(mine), newest=newest)
            reports[0].append(injected.to_value())
        for level, intervals in enumerate(plan.intervals, 1):
            for interval in intervals:
                weights = {t: [10, 1_000] for t in interval.tablets} if plan.weigh else {}
                nodes = {
                    name: NodeReport(
                        records=10,
                        input=reached,
                        low=reached,
                        counters=[10, 1_000, 0, 0, 0, 0],
                        weights=weights,
                    )
                    for name in self._graph.levels[level - 1]
                }
                report = IntervalReport(level, interval.first, interval.sequencer, nodes, seconds=0.01)
                reports[interval.slot].append(report.to_value())
        data = [Frame(plan.slots, slot, {}, reports=mine).to_bytes() for slot, mine in enumerate(reports)]
        self.bytes = sum(map(len, data))
        self.cpu += time.process_time() - started
        with paused_collection():
            return [Frame.from_bytes(part) for part in data]

    def close(self) -> None:
        """Does nothing."""


def _spark_task(tasks: tuple[int, int]) -> float:
    """Milliseconds for one more Python task that does nothing: the least of three, by the slope."""
    took: dict[int, float] = {}
    with results.scratch("scale") as work, session(work) as spark:
        context = spark.sparkContext
        for _ in range(3):
            for count in tasks:
                numbers = context.parallelize(range(count), count)
                started = time.perf_counter()
                numbers.mapPartitions(lambda items: [sum(items)]).collect()
                took[count] = min(took.get(count, 1e9), time.perf_counter() - started)
    few, many = tasks
    return (took[many] - took[few]) / (many - few) * 1e3
