"""A pipeline of two levels that a test kills: ``python victim.py INPUT STORE OUTPUT OPTIONS``.

It says ``running`` when epochs begin, and prints its report when it has come to the end.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import millwheel as mw

_DAWDLE = 120.0  # seconds: on a busy machine Spark takes its time to see that a task is slow


class Windower(mw.Computation):
    """Counts a query per second and region."""

    dawdles = ""
    """Where this is a path: one record takes its time."""
    pace = 0.0
    """The seconds that every record takes, so that there is time to kill something."""

    def process_record(self, record: mw.Record) -> None:
        if self.dawdles:
            self._dawdle()
        if self.pace:
            time.sleep(self.pace)
        bucket = record.timestamp // mw.SECOND
        counts = self.state.setdefault(bucket, {})
        region = record.value["region"]
        counts[region] = counts.get(region, 0) + 1
        self.set_timer(str(bucket), (bucket + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        for region, count in sorted(self.state.pop(int(timer.tag)).items()):
            value = {"query": self.key, "region": region, "count": count}
            self.produce("windows", value, timestamp=timer.timestamp - 1)

    def _dawdle(self) -> None:
        """Sleeps once in all, until Spark has started a second attempt at the task, which leaves a file."""
        from pyspark import TaskContext

        again = Path(f"{self.dawdles}-again")
        if again.exists():
            self.dawdles = ""
            return
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber():
            again.touch()
            return
        try:
            Path(self.dawdles).touch(exist_ok=False)
        except FileExistsError:
            return
        end = time.monotonic() + _DAWDLE
        while not again.exists() and time.monotonic() < end:
            time.sleep(0.1)


class Regions(mw.Computation):
    """Sums a region's windows per second; keeps how often it has done so, so that doubles show."""

    def initial_state(self) -> dict[str, Any]:
        return {"closed": 0, "open": {}}

    def process_record(self, record: mw.Record) -> None:
        bucket = record.timestamp // mw.SECOND
        total, queries = self.state["open"].get(bucket, (0, 0))
        self.state["open"][bucket] = (total + record.value["count"], queries + 1)
        self.set_timer(str(bucket), (bucket + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        total, queries = self.state["open"].pop(int(timer.tag))
        self.state["closed"] += 1
        value = {"total": total, "queries": queries, "closed": self.state["closed"]}
        self.produce("regions", value, timestamp=timer.timestamp - 1)


class Follows(mw.Computation):
    """Tells of every record of a region that comes out of order, and of how many came by each second."""

    def process_record(self, record: mw.Record) -> None:
        if record.timestamp < self.state.get("last", 0):
            self.produce("followed", ["out of order", record.timestamp])
        self.state["last"] = record.timestamp
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer("second", (record.timestamp // mw.SECOND + 1) * mw.SECOND)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("followed", self.state["n"])


def pipeline(source: Path, output: Path, *, in_order: bool = False) -> mw.Pipeline:
    """Two levels: by query, then by region."""
    p = mw.Pipeline("victim")
    p.inject(
        "queries", mw.injectors.Files(source / "*.jsonl", timestamp="time", id="id", slack=2 * mw.SECOND)
    )
    p.add(Windower(), inputs={"queries": mw.by("query")}, outputs=["windows"])
    p.add(Regions(), inputs={"windows": mw.by("region")}, outputs=["regions"])
    if in_order:
        p.add(Follows(), inputs={"queries": mw.by("region")}, outputs=["followed"], in_order=True)
        p.sink("followed", mw.sinks.JsonLines(output / "followed"))
    p.sink("windows", mw.sinks.JsonLines(output / "windows"))
    p.sink("regions", mw.sinks.JsonLines(output / "regions"))
    return p


def main() -> None:
    """Runs to the end, unless it is killed."""
    source, store, output, given = sys.argv[1:]
    options = json.loads(given)
    from millwheel.spark.session import local_session

    if options.pop("slow", False):
        Windower.dawdles = str(Path(output).with_name("dawdled"))
    Windower.pace = options.pop("pace", 0.0)
    if options.pop("weak", False):
        Windower.strong_productions = Regions.strong_productions = False
    local_session(options.pop("master", None))
    print("running", flush=True)
    made = pipeline(Path(source), Path(output), in_order=options.pop("in_order", False))
    report = mw.run(made, store=store, **options)
    print(json.dumps(dataclasses.asdict(report)), flush=True)


if __name__ == "__main__":
    main()
