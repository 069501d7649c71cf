"""The pipeline that is run for the class archive: see `spark.class_archive`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from millwheel.injectors import Records
from millwheel.launch import run
from millwheel.model.computation import Computation
from millwheel.model.pipeline import Pipeline
from millwheel.model.record import Record
from millwheel.sinks import Collect

_LONGEST = 300  # seconds for making one; it takes 15 on an idle machine


class _Copy(Computation):
    def process_record(self, record: Record) -> None:
        self.produce("copies", record.value)


def make(place: str) -> None:
    """Makes the archive in a folder, at the lowest priority, in the background."""
    from millwheel.spark.class_archive import Archive

    os.nice(19)
    signal.alarm(_LONGEST)
    Archive(Path(place)).make(run_a_pipeline)


def run_a_pipeline(made: Path) -> None:
    """Runs epochs and a query in a JVM that writes its classes to a file at its end."""
    from millwheel.spark.class_archive import SWITCH
    from millwheel.spark.session import local_context, local_session

    os.environ[SWITCH] = "off"
    context = local_context(settings={"spark.driver.memory": "512m"}, java=f"-XX:ArchiveClassesAtExit={made}")
    local_session().range(10).collect()
    records = [Record(value="x" * 1_000, timestamp=at) for at in range(1_000)]
    for compact in (0, 4_000):
        pipeline = Pipeline("classes")
        pipeline.inject("records", Records(records))
        pipeline.add(_Copy(), inputs={"records": lambda record: str(record.timestamp)}, outputs=["copies"])
        pipeline.sink("copies", Collect())
        run(pipeline, store="memory:", compact_below=compact, progress=False)
    gateway: Any = context._gateway
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # ends the JVM, which then writes
    gateway.proc.wait()
