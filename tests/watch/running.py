"""A pipeline that runs in this process, on a real store, in the thread of a real job; no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import millwheel as mw
from millwheel.job import Job
from millwheel.master.ending import Ending
from millwheel.store.base import Store
from millwheel.store.open import open_store
from millwheel.watch.history import Recorder
from tests.spark.sources import Feed
from tests.store.driving import take

HOSTILE = "<script>document.title='run'</script><img src=x onerror=alert(1)>"


SPARK_PAGE = "http://127.0.0.1:4040"
SPARK_JOB = 7  # every epoch's, as far as this executor is concerned


class Visits(mw.Computation):
    """Keeps a key's visits, and closes each second with a timer; holds what it was told to hold."""

    def process_record(self, record: mw.Record) -> None:
        self.count("visits")
        self.state["seen"] = self.state.get("seen", 0) + 1
        self.set_timer(str(record.timestamp // mw.SECOND), (record.timestamp // mw.SECOND + 1) * mw.SECOND)
        if record.value.get("hold"):
            self.hold(record.timestamp, "open visit")

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("seconds", {"user": self.key}, timestamp=timer.timestamp - 1)


class Totals(mw.Computation):
    """Counts what comes, per first letter."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("totals", self.state["n"])


def visits(number: int, users: int = 7, start: int = 0) -> list[mw.Record]:
    """Ten records a second; every third comes from the same user."""
    return [
        mw.Record(
            value={"user": "regular" if i % 3 == 0 else f"user {i % users}"},
            timestamp=start + i * mw.SECOND // 10,
            id=i,
        )
        for i in range(number)
    ]


def pipeline(feed: mw.Injector, sink: mw.Sink | None = None) -> mw.Pipeline:
    """Two levels: visits by user, totals by the first letter."""
    p = mw.Pipeline("visits")
    p.inject("in", feed)
    p.add(Visits(), inputs={"in": mw.by("user")}, outputs=["seconds"])
    p.add(Totals(), inputs={"seconds": lambda record: record.value["user"][:1]}, outputs=["totals"])
    p.sink("totals", sink if sink is not None else mw.sinks.Collect())
    return p


def operators(feed: mw.Injector) -> mw.Pipeline:
    """Visits per user and second by operators, and the users with the most."""
    p = mw.Pipeline("operators")
    some = p.inject("in", feed).filter(lambda value: value["user"] != "user 2")
    counts = some.key_by("user").window(mw.windows.tumbling(mw.SECOND)).count("counts")
    counts.top("best", 2, by="count", window=mw.windows.tumbling(2 * mw.SECOND)).sink(mw.sinks.Collect())
    return p


def wall() -> int:
    """The time of day."""
    return time.time_ns() // 1000


@contextmanager
def running(p: mw.Pipeline, store: Store, slots: int = 2) -> Iterator[Job]:
    """The pipeline as a job of this process, watched as `millwheel.start` watches one."""
    driver, executor = take(
        p, store, slots=slots, clock=wall, ending=Ending.NEVER, owner="process 1 on a test"
    )
    driver.observer = Recorder(driver, spark=SPARK_PAGE)
    executor.job = SPARK_JOB
    job = Job(driver, executor, until_exhausted=False, on_close=lambda: None)
    job.start()
    with job:
        yield job


def stopped(path: Path | str, records: list[mw.Record] | None = None) -> Store:
    """A store whose pipeline has run and stopped in the middle of its input."""
    from tests.spark.waiting import eventually

    found = visits(40) if records is None else records
    with running(pipeline(Feed({"only": found}, opened=len(found))), open_store(path, shards=2)) as job:
        eventually(lambda: job.status().records_in == len(found))
    return open_store(path)
