"""The view of a pipeline: one plain value for the page, the commands and metrics.

It is made from the journal alone, a few entries for any number of keys, so it is quick; a
running pipeline and a stopped one give the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from millwheel.errors import StoreError
from millwheel.master.commit_entry import Commit
from millwheel.master.journal import Shape, read_layout, read_partitions, read_shape
from millwheel.master.standby import StandbyView, read_standbys
from millwheel.master.watchdog import read_slow
from millwheel.model.codec import unpack
from millwheel.model.derived import public_names
from millwheel.model.json_form import plain
from millwheel.model.names import SourceName
from millwheel.model.time import MAX_TIME, MIN_TIME, SECOND
from millwheel.store.base import Store
from millwheel.store.keyspace import JournalKey, after
from millwheel.watch.history import KEPT, SAMPLES, Sample, Watch, read_samples, read_watch, window
from millwheel.watch.load import HALF_LIFE
from millwheel.watermark.marks import ComputationMarks
from millwheel.worker.counters import NAMES, TROUBLE, Counters

RATE_WINDOW = 10.0
"""Seconds over which rates are taken."""
MOST_PARTITIONS = 100
"""The slowest ones of an injector, which may have had thousands of files."""
MOST_EPOCHS = 120

_ENTRIES = (JournalKey.PIPELINE, JournalKey.DRIVER, JournalKey.COMMIT, JournalKey.TOPOLOGY)


@dataclass
class ComputationView(Counters[int]):
    """A computation. Counts are since the store was made; rates are records a second."""

    name: str
    level: int
    inputs: list[str]
    outputs: list[str]
    low_watermark: int
    input_watermark: int
    lag: float | None
    """Seconds of the low watermark behind real time; None without one, or at its end."""
    filter_bytes: int = 0
    filter_error: float = 0.0
    rate_in: float = 0.0
    rate_out: float = 0.0
    watermark_timers: int = 0
    wall_timers: int = 0
    holds: int = 0
    waiting: int = 0
    """Buffered records (in_order)."""
    rows: int = 0
    bytes: int = 0


@dataclass
class PartitionView:
    """The progress of a partition; ``offset`` is the injector's own."""

    name: str
    offset: Any
    watermark: int
    newest: int


@dataclass
class InjectorView:
    """An injector: its low watermark, its holder, and its slowest partitions."""

    name: str
    stream: str
    low_watermark: int
    lag: float | None
    partition_count: int
    holder: str | None
    why: str | None
    partitions: list[PartitionView] = field(default_factory=list)


@dataclass
class StreamView:
    """A stream: its writers and readers, and its number of records."""

    name: str
    producers: list[str]
    """Computations."""
    injectors: list[str]
    consumers: list[str]
    derived: list[str]
    """The streams that operators derive from it."""
    sinks: list[str]
    records: int
    rate: float


@dataclass
class View:
    """A pipeline at one time, in microseconds since 1970."""

    pipeline: str
    time: int
    running: bool | None
    """Whether a driver has the store; None if unknown."""
    owner: str
    epoch: int
    committed: int
    """The wall time of the last epoch."""
    epochs: int
    records_in: int
    rate: float
    input_errors: int
    computations: list[ComputationView]
    injectors: list[InjectorView]
    streams: list[StreamView]
    intervals: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    """The last changes of intervals: time, level, reason, before and after."""
    changed: dict[str, int]
    """The number of intervals moved, split and merged since the store was made."""
    recent: list[dict[str, Any]]
    """The last epochs, oldest first: start, duration, and phases."""
    user: dict[str, int]
    durations: list[int]
    """Epochs of the current driver by duration: see `history.BUCKETS`."""
    seconds: float
    phases: dict[str, float]
    spark: str | None
    standbys: list[StandbyView] = field(default_factory=list)
    """Standby drivers."""
    trouble: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"name": each.name, "kind": each.kind, "sampled": each.sampled} for each in TROUBLE
        ]
    )
    """The counters that are shown if not zero, from `millwheel.worker.counters`."""
    warnings: list[str] = field(default_factory=list)
    """Likely mistakes of the last run, such as a field that no record has."""
    slow: list[dict[str, Any]] = field(default_factory=list)
    """Hooks that have been running for long: computation, key, hook, since (seconds)."""

    def to_value(self) -> dict[str, Any]:
        """As dicts and lists, for JSON."""
        return asdict(self)


class Viewer:
    """Reads views of a store on request; reads each sample of its history once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self.samples: list[Sample] = []
        """The history, oldest first."""

    def look(self, now: int) -> View:
        """The current view of the pipeline.

        The snapshot is closed before anything is computed: a driver in this process may need to write.
        """
        with self._store.journal.snapshot() as snapshot:
            journal = {key: snapshot.get(key) for key in _ENTRIES}
            partitions = list(snapshot.scan(JournalKey.PARTITIONS, after(JournalKey.PARTITIONS)))
            shape = read_shape(snapshot)
            watch = read_watch(snapshot)
            changes = read_layout(snapshot).get("changes", [])
            samples = read_samples(snapshot, self._next)
            slow = read_slow(snapshot)
            standbys = read_standbys(snapshot, now)
        if shape is None:
            raise StoreError("the store has no pipeline in it yet")
        self.samples = [*self.samples, *samples][-SAMPLES:]
        self._next = watch.next
        running = self._store.in_use()
        view = _View(journal, partitions, shape, watch, changes, self.samples, now, running).make()
        view.slow = slow if running is not False else []
        view.standbys = standbys
        return view


def look(store: Store, now: int) -> View:
    """The current view of a store's pipeline."""
    return Viewer(store).look(now)


class _View:
    """One reading of a journal."""

    def __init__(
        self,
        journal: Mapping[bytes, bytes | None],
        partitions: list[tuple[bytes, bytes]],
        shape: Shape,
        watch: Watch,
        changes: list[dict[str, Any]],
        samples: list[Sample],
        now: int,
        running: bool | None,
    ) -> None:
        self._shape = shape
        self._shown = public_names(shape.producers)
        self._watch = watch
        self._changes = changes
        self._samples = samples
        self._now = now
        self._running = running
        self._pipeline = str(unpack(journal[JournalKey.PIPELINE] or b"\xa0"))
        self._owner = str(unpack(journal[JournalKey.DRIVER] or b"\x92\x00\xa0")[1])
        self._commit, topology = Commit.from_bytes(journal[JournalKey.COMMIT]), journal[JournalKey.TOPOLOGY]
        self._totals = self._commit.totals or {}
        self._levels = _levels(unpack(topology)[0] if topology is not None else [], shape)
        self._before = window(samples, now, RATE_WINDOW)
        self._partitions = read_partitions(partitions)

    def make(self) -> View:
        watch, totals = self._watch, self._totals
        recent = [epoch for sample in self._samples[-MOST_EPOCHS:] for epoch in sample.epochs]
        return View(
            pipeline=self._pipeline,
            time=self._now,
            running=self._running,
            owner=self._owner,
            epoch=self._commit.epoch,
            committed=self._commit.now,
            epochs=totals.get("epochs", 0),
            records_in=totals.get("records_in", 0),
            rate=self._rate(totals.get("records_in", 0), lambda sample: sample.records_in),
            input_errors=totals.get("input_errors", 0),
            computations=[self._computation(name) for name in self._shape.inputs],
            injectors=[
                self._injector(name)
                for name in dict.fromkeys(
                    who
                    for writers in self._shape.producers.values()
                    for who in writers
                    if isinstance(who, SourceName)
                )
            ],
            streams=[self._stream(name) for name in self._shape.producers],
            intervals=self._intervals(),
            changes=self._changes,
            changed=dict(totals.get("intervals", {})),
            recent=recent[-MOST_EPOCHS:],
            user=dict(totals.get("user", {})),
            warnings=list(totals.get("warnings", [])),
            durations=watch.durations,
            seconds=watch.seconds,
            phases=watch.phases,
            spark=watch.spark if self._running else None,
        )

    def _rate(self, count: int, before: Any) -> float:
        if self._before is None or self._running is False:
            return 0.0
        sample, seconds = self._before
        return float(max(count - before(sample), 0) / seconds)

    def _lag(self, low: int) -> float | None:
        return None if low in (MIN_TIME, MAX_TIME) else (self._now - low) / SECOND

    def _computation(self, name: str) -> ComputationView:
        found = self._commit.watermarks.get(name, ComputationMarks())
        counts = {counted: self._totals.get(counted, {}).get(name, 0) for counted in NAMES}
        marks = found.intervals.values()

        def before(counted: str) -> Any:
            return lambda sample: sample.computations.get(name, {}).get(counted, 0)

        return ComputationView(
            name=name,
            level=self._levels.get(name, 1),
            inputs=[self._shown[stream] for stream in self._shape.inputs[name]],
            outputs=self._writes(name),
            low_watermark=found.low,
            input_watermark=found.input,
            lag=self._lag(found.low),
            rate_in=self._rate(counts["records"], before("records")),
            rate_out=self._rate(counts["produced"], before("produced")),
            filter_bytes=sum(mark.filter_bytes for mark in marks),
            filter_error=max((mark.filter_error for mark in marks), default=0.0),
            **counts,
            **{kept: found.counter(index) for kept, index in KEPT.items()},
        )

    def _injector(self, who: SourceName) -> InjectorView:
        low = self._commit.sources.get(who, MIN_TIME)
        partitions = self._partitions.get(who, {})
        slowest = sorted(partitions, key=lambda name: (partitions[name].watermark, partitions[name].newest))
        by = self._commit.holders.get(who)
        return InjectorView(
            name=str(who),
            stream=who.stream,
            low_watermark=low,
            lag=self._lag(low),
            partition_count=len(partitions),
            holder=by.partition if by is not None and low < MAX_TIME else None,
            why=by.why if by is not None and low < MAX_TIME else None,
            partitions=[
                PartitionView(name, plain(state.offset), state.watermark, state.newest)
                for name, state in ((name, partitions[name]) for name in slowest[:MOST_PARTITIONS])
            ],
        )

    def _writes(self, who: str) -> list[str]:
        """The streams of a computation or an injector, with those derived from them."""
        return [self._shown[stream] for stream, writers in self._shape.producers.items() if who in writers]

    def _stream(self, name: str) -> StreamView:
        records = self._totals.get("streams", {}).get(name, 0)
        return StreamView(
            name=self._shown[name],
            producers=[who for who in self._shape.producers[name] if isinstance(who, str)],
            injectors=[str(who) for who in self._shape.producers[name] if isinstance(who, SourceName)],
            consumers=[reader for reader, inputs in self._shape.inputs.items() if name in inputs],
            derived=[self._shown[stream] for stream in self._shape.derived.get(name, [])],
            sinks=self._watch.sinks.get(name, []),
            records=records,
            rate=self._rate(records, lambda sample: sample.streams.get(name, 0)),
        )

    def _intervals(self) -> list[dict[str, Any]]:
        """The load of each interval, with the size of its computations' state."""
        kept: dict[tuple[int, int], dict[str, int]] = {}
        for name, marks in self._commit.watermarks.items():
            for first, mark in marks.intervals.items():
                sums = kept.setdefault((self._levels.get(name, 1), first), dict.fromkeys(KEPT, 0))
                for what, index in KEPT.items():
                    sums[what] += mark.counter(index)
        since = max(self._now - self._watch.at, 0) / SECOND
        faded = 0.5 ** (since / HALF_LIFE)  # a load decays while nothing is recorded, too
        return [
            {
                **load,
                "busy": load["busy"] * faded,
                "records_per_second": load["records_per_second"] * faded,
                **kept.get((load["level"], load["first"]), dict.fromkeys(KEPT, 0)),
            }
            for load in self._watch.loads
        ]


def _levels(journaled: list[list[str]], shape: Shape) -> Mapping[str, int]:
    """The level of each computation; before the first plan, its distance."""
    levels = {name: number for number, level in enumerate(journaled, 1) for name in level}
    if levels.keys() >= shape.inputs.keys():
        return levels
    for name in shape.inputs:  # in the order of the graph: senders come first
        senders = (who for who in shape.senders(name) if isinstance(who, str))
        levels[name] = max((levels.get(who, 0) for who in senders), default=0) + 1
    return levels
