"""The last minutes of a pipeline, stored in its journal with the commits.

    watch    the current load of each interval, epochs by duration and phase, sinks
    hNN      a ring of samples, at least a second apart

A note costs no write of its own while epochs are committed, and nothing for each record; every reader of
the store, in this process or another, sees the same history.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from millwheel.errors import MillWheelError
from millwheel.master.driver import Driver
from millwheel.model.codec import pack, unpack
from millwheel.model.time import SECOND
from millwheel.store.base import Snapshot
from millwheel.store.keyspace import JournalKey
from millwheel.watch.load import Load
from millwheel.watch.logs import where
from millwheel.worker.counters import SAMPLED
from millwheel.worker.plan import Plan
from millwheel.worker.report import IntervalReport
from millwheel.worker.timer_index import BYTES, HOLDS, ROWS, WAITING_TOTAL, WALL_TIMERS, WATERMARK_TIMERS

logger = logging.getLogger("millwheel")

SAMPLES = 600
"""Samples in the ring: ten minutes at one a second, a megabyte in total."""

_EVERY = 1.0  # seconds between samples: enough for a person, and cheap for the journal
_EPOCHS = 60  # epochs kept between two samples; there are rarely more than twenty

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds, in seconds, of the histogram of epochs by duration."""

KEPT = {
    "watermark_timers": WATERMARK_TIMERS,
    "wall_timers": WALL_TIMERS,
    "holds": HOLDS,
    "waiting": WAITING_TOTAL,
    "rows": ROWS,
    "bytes": BYTES,
}

_AS_THEY_ARE = ("records", "compact", "job")  # fields of an epoch that are stored unchanged


@dataclass(frozen=True)
class Sample:
    """The counts at one time."""

    time: int
    epoch: int
    records_in: int
    streams: dict[str, int]
    computations: dict[str, dict[str, int]]
    """By computation: its low watermark, its counts, and the size of its state."""
    epochs: list[dict[str, Any]]
    """The epochs since the previous sample."""


@dataclass
class Watch:
    """The current values that are not in the journal's commit."""

    next: int = 0
    """The number of the next sample."""
    at: int = 0
    """When this was written."""
    since: int = 0
    """When the current driver started: the origin of the histogram and the phases."""
    sinks: dict[str, list[str]] = field(default_factory=dict)
    loads: list[dict[str, Any]] = field(default_factory=list)
    durations: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """Epochs by duration: one count for each bucket, and one for longer ones."""
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    spark: str | None = None
    """The address of Spark's own page, if it has one."""


class Recorder:
    """Observes a driver, and stores notes with its commits, at most once a second."""

    def __init__(
        self,
        driver: Driver,
        *,
        spark: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._load = Load()
        self.before_close: Callable[[], None] | None = None
        """Called before the driver closes the store: readers must stop."""
        self.on_epoch: Callable[[dict[str, Any], list[float]], None] | None = None
        """Called for each epoch, with the times of its steps."""
        self._epochs: deque[dict[str, Any]] = deque(maxlen=_EPOCHS)
        with driver.store.journal.snapshot() as snapshot:
            before = read_watch(snapshot)
        self._watch = Watch(next=before.next, since=driver.now(), sinks=_sinks(driver), spark=spark)
        driver.journal.note(self._take())

    def epoch(self, plan: Plan, reports: list[IntervalReport], moments: list[float]) -> None:
        """Records a committed epoch."""
        seconds = moments[-1] - moments[0]
        phases = _phases(plan, reports, moments)
        self._load.add(plan, reports, self._clock())
        watch = self._watch
        watch.seconds += seconds
        watch.durations[sum(seconds > bound for bound in BUCKETS)] += 1
        for name, part in phases.items():
            watch.phases[name] = watch.phases.get(name, 0.0) + part
        epoch = {
            "epoch": plan.epoch,
            "began": plan.now,
            "seconds": seconds,
            "records": sum(report.records_in for report in reports),
            "compact": plan.compact,
            "job": self._driver.job,
            "phases": phases,
        }
        self._epochs.append(epoch)
        where.set({"pipeline": self._driver.graph.name, "epoch": plan.epoch})
        if logger.isEnabledFor(logging.INFO):
            logger.info("epoch %d: %d records in %.3f s", plan.epoch, epoch["records"], seconds, extra=epoch)
        if self.on_epoch is not None:
            self.on_epoch(epoch, moments)
        where.set({"pipeline": self._driver.graph.name, "epoch": plan.epoch + 1})

    def follow(self, driver: Driver) -> None:
        """Continues with the driver of a changed pipeline."""
        self._driver = driver
        self._watch.sinks = _sinks(driver)

    def notes(self) -> list[tuple[bytes, bytes]]:
        """A sample, if the last one is a second old."""
        if self._clock() - self._last < _EVERY:
            return []
        return self._take()

    def idle(self) -> None:
        """Stores what came after the last sample, once, when the pipeline is idle."""
        if self._epochs and self._clock() - self._last >= _EVERY:
            self._driver.journal.note(self._take())

    def close(self) -> None:
        """Stores the rest."""
        if self.before_close is not None:
            self.before_close()
        if self._epochs:
            try:
                self._driver.journal.note(self._take())
            except MillWheelError:  # taken over, or the disk is full: the run has reported it, or is over
                logger.debug("the last epochs could not be noted", exc_info=True)

    def _take(self) -> list[tuple[bytes, bytes]]:
        driver, watch = self._driver, self._watch
        totals, authority = driver.tally.totals.value, driver.authority
        sample = Sample(
            driver.now(),
            driver.epoch,
            totals["records_in"],
            dict(totals["streams"]),
            {
                name: {
                    "low_watermark": low,
                    **{counted: totals[counted].get(name, 0) for counted in SAMPLED},
                    **{kept: authority.counter(name, index) for kept, index in KEPT.items()},
                }
                for name, low in authority.lows.items()
            },
            list(self._epochs),
        )
        self._epochs.clear()
        self._last = self._clock()
        watch.at = sample.time
        watch.loads = self._load.of(driver.layout.intervals, self._last)
        slot = watch.next % SAMPLES
        watch.next += 1
        return [
            (JournalKey.HISTORY + slot.to_bytes(2, "big"), _encode(sample)),
            (JournalKey.WATCH, pack(asdict(watch))),
        ]


def _phases(plan: Plan, reports: list[IntervalReport], moments: list[float]) -> dict[str, float]:
    """The phases of an epoch, in seconds.

    Of the injecting tasks, or those of a level, which run in parallel, the longest counts; in a compact
    epoch, where one task runs them all, their sum. The rest of the job, which carries the records, is
    scheduling, shuffles and writes.
    """
    journal, job, deliver, commit = (end - start for start, end in itertools.pairwise(moments))
    levels: dict[int, dict[int, float]] = {}
    slot_of = {(0, task): task for task in range(plan.tasks)}
    slot_of |= {(level, i.first): i.slot for level, part in enumerate(plan.intervals, 1) for i in part}
    for report in reports:
        slot = 0 if plan.compact else slot_of[report.level, report.first]
        slots = levels.setdefault(report.level, {})
        slots[slot] = slots.get(slot, 0.0) + report.seconds
    longest = {level: max(slots.values()) for level, slots in sorted(levels.items())}
    phases = {"journal": journal, "carry": max(job - sum(longest.values()), 0.0)}
    phases |= {f"level {level}" if level else "inject": seconds for level, seconds in longest.items()}
    return {**phases, "deliver": deliver, "commit": commit}


def read_watch(snapshot: Snapshot) -> Watch:
    """The last notes; empty if there are none."""
    data = snapshot.get(JournalKey.WATCH)
    return Watch(**unpack(data)) if data is not None else Watch()


def read_samples(snapshot: Snapshot, start: int = 0) -> list[Sample]:
    """The stored samples in order of time, from number ``start`` on."""
    end = read_watch(snapshot).next
    first = max(start, end - SAMPLES)
    found = (
        snapshot.get(JournalKey.HISTORY + (number % SAMPLES).to_bytes(2, "big"))
        for number in range(first, end)
    )
    return [_decode(data) for data in found if data is not None]


def _encode(sample: Sample) -> bytes:
    """Encodes epochs as columns of small integers: a fifth of the bytes."""
    epochs = sample.epochs
    phases = list(dict.fromkeys(name for epoch in epochs for name in epoch["phases"]))
    columns = [
        [sample.epoch - epoch["epoch"] for epoch in epochs],
        [sample.time - epoch["began"] for epoch in epochs],
        [_micros(epoch["seconds"]) for epoch in epochs],
        *([epoch[name] for epoch in epochs] for name in _AS_THEY_ARE),
        *([_micros(epoch["phases"].get(name)) for epoch in epochs] for name in phases),
    ]
    return pack({**vars(sample), "epochs": {"phases": phases, "columns": columns}})


def _decode(data: bytes) -> Sample:
    raw = unpack(data)
    noted = raw["epochs"]
    if isinstance(noted, dict):  # an earlier version had a list of epochs
        raw["epochs"] = [
            {
                "epoch": raw["epoch"] - before,
                "began": raw["time"] - ago,
                "seconds": micros / SECOND,
                **dict(zip(_AS_THEY_ARE, values, strict=False)),
                "phases": {
                    name: part / SECOND
                    for name, part in zip(noted["phases"], values[len(_AS_THEY_ARE) :], strict=True)
                    if part is not None
                },
            }
            for before, ago, micros, *values in zip(*noted["columns"], strict=True)
        ]
    return Sample(**raw)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)


def totals_at(samples: list[Sample], moment: int) -> Sample | None:
    """The newest sample that is not after a time, or the oldest one."""
    found = None
    for sample in samples:
        if found is not None and sample.time > moment:
            break
        found = sample
    return found


def window(samples: list[Sample], now: int, seconds: float) -> tuple[Sample, float] | None:
    """The counts this long before now, and the seconds since: for rates.

    If nothing was committed for more than a second there is no sample, so the older one is valid until now.
    """
    sample = totals_at(samples, now - int(seconds * SECOND))
    if sample is None:
        return None
    return sample, min(max((now - sample.time) / SECOND, 1e-3), seconds)


def _sinks(driver: Driver) -> dict[str, list[str]]:
    return {stream: [type(sink).__name__ for sink in found] for stream, found in driver.graph.sinks.items()}
