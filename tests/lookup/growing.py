"""A side table that is another one each time it is read, and a pipeline that looks it up."""

from __future__ import annotations

import threading
from typing import Any

import millwheel as mw
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import inject, run_level
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker


class Growing(mw.lookups.SideTable):
    """Each row says how often the table had been read."""

    def __init__(self, *, changes: bool = True, rows: int = 10, width: int = 0) -> None:
        self.reads = 0
        self.broken = False
        self.gate: threading.Event | None = None
        self._changes = changes
        self._rows = rows
        self._width = width

    def read(self) -> mw.lookups.Rows:
        if self.gate is not None:
            assert self.gate.wait(60)
        if self.broken:
            raise OSError("gone")
        self.reads += 1
        read = self.reads if self._changes else 1
        rows = [{"id": n, "read": read, "x": "x" * self._width} for n in range(self._rows)]
        return mw.lookups.Rows((), rows)


class Keep(mw.Computation):
    """Keeps what it saw, and sends it on by a timer."""

    def process_record(self, record: mw.Record) -> None:
        self.state.setdefault("seen", []).append(record.value["read"])
        self.set_timer("end", 1000)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("kept", {"id": int(self.key)})


def enriched(table: Any, *, refresh: int | None = None, records: int = 0) -> mw.Pipeline:
    """Records are looked up when they are injected, and what becomes of them when it is produced."""
    p = mw.Pipeline("enriched")
    given = [mw.Record(value={"id": n}, timestamp=n) for n in range(records)]
    source = p.inject("in", mw.injectors.Records(given))
    found = source.lookup(table, on="id", refresh=refresh).named("found")
    found.sink(mw.sinks.Collect())
    p.add(Keep(), inputs={"found": mw.by("id")}, outputs=["kept"])
    p.stream("kept").lookup(table, on="id", refresh=refresh).named("late")
    return p


class Killed(BaseException):
    """The driver and its workers are gone."""


class Mortal:
    """Runs the first slot of the first level, and dies."""

    job = None

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def execute(self, plan: Plan) -> list[Frame]:
        sent = [inject(self._worker, plan, task) for task in range(plan.tasks)]
        run_level(self._worker, plan, 1, 0, [frames[0] for frames in sent])
        raise Killed

    def close(self) -> None:
        """There is nothing to close."""
