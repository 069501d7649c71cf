"""A case on the engine: the driver, the workers and a store, in this process."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import millwheel as mw
from millwheel.errors import StoreError
from millwheel.master.driver import Driver
from millwheel.master.ending import Start
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.master.status import Report
from millwheel.model.graph import Graph, build
from millwheel.model.injector import Injector, Offset
from millwheel.model.sink import Sink
from millwheel.store.base import Store
from millwheel.store.memory import MemoryShard, MemoryStore
from millwheel.store.open import open_store
from millwheel.store.tools.copy import copy
from millwheel.worker.cache import Cache
from millwheel.worker.plan import Plan
from tests.differential import behaviour
from tests.differential.behaviour import extract, number, on_record, on_timer, side_table, transform, value_of
from tests.differential.case import OPERATORS, Case, DerivedSpec, Extractor, NodeSpec, Step
from tests.differential.executor import FUSE, BurntOut, Killed, Tasks
from tests.differential.operators import operator, top_of, window_of

_MOST_EPOCHS = 400  # of one step, in which work may be cut very small


class ByHand(Injector):
    """Partitions of records that were sent, each up to a watermark set by hand."""

    def __init__(self, partitions: int, slack: int | None) -> None:
        self.slack = slack
        self.records: dict[str, list[mw.Record]] = {str(number): [] for number in range(partitions)}
        self.marks = dict.fromkeys(self.records, mw.MIN_TIME)

    def poll(self) -> Mapping[str, Offset]:
        return {name: len(records) for name, records in self.records.items()}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[mw.Record]:
        return self.records[partition][start or 0 : end]

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self.marks[partition]

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return end


class Drawn(mw.Computation):
    """A drawn computation, with the engine's own accessors."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec

    def process_record(self, record: mw.Record) -> None:
        on_record(self.spec, self, record)
        if self.spec.errors == "stop":
            FUSE.burn()

    def process_timer(self, timer: mw.Timer) -> None:
        on_timer(self.spec, self, timer)
        if self.spec.errors == "stop":
            FUSE.burn()


class Extract:
    """A drawn key extractor."""

    def __init__(self, how: Extractor) -> None:
        self.how = how

    def __call__(self, record: mw.Record) -> Any:
        return extract(self.how, record)


class Tap(Sink):
    """What a stream has carried, by epoch and shard: the outside, which outlives driver and workers."""

    def __init__(self) -> None:
        self.written: dict[tuple[int, int], list[mw.Record]] = {}

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        self.written[epoch, shard] = list(records)

    def take(self) -> list[mw.Record]:
        """What came since it was last asked."""
        found = [record for place in sorted(self.written) for record in self.written[place]]
        self.written.clear()
        return found


class Engine:
    """Runs the steps of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._options = case.options
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._made = 0
        self.store = self._make_store()
        self._injectors = {source.name: ByHand(source.partitions, source.slack) for source in case.sources}
        self._taps: dict[str, Tap] = {}
        self._order = random.Random(case.options.order)
        self._wall = 0
        self._slots = case.options.slots
        self._nodes: tuple[NodeSpec, ...] = ()
        self.driver: Driver | None = None
        shelves = [MemoryShard([]) for _ in range(case.options.shards)]
        self._cache = Cache(shelves.__getitem__, case.options.cache) if case.options.cache else None
        self._begin: Any = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *problem: object) -> None:
        self.store.close()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _on_disk(self) -> bool:
        return self._options.lmdb or self._options.objects

    def _make_store(self) -> Store:
        """An empty store with the next number of tablets."""
        options = self._options
        tablets = options.tablets[self._made % len(options.tablets)]
        self._made += 1
        if not self._on_disk:
            return MemoryStore(options.shards, tablets)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="differential-")
        return open_store(self._place(), shards=options.shards, tablets=tablets)

    def _place(self) -> str:
        assert self._folder is not None
        path = f"{self._folder.name}/store-{self._made}"
        return f"file://{path}" if self._options.objects else f"lmdb://{path}?sync=0"

    def _open_again(self) -> None:
        """The store as another process finds it: copied, where there are several numbers of tablets."""
        self.store.close()
        if self._on_disk:
            self.store = open_store(self._place())
        if len(set(self._options.tablets)) == 1:
            return
        before, self.store = self.store, self._make_store()
        try:
            copy(before, self.store)
        except StoreError as error:
            if "was begun" not in str(error) and "no pipeline" not in str(error):
                raise
            self.store.close()  # an epoch must be finished first
            self._made -= 1
            self.store = before
        else:
            before.close()

    def _graph(self) -> Graph:
        p = mw.Pipeline("differential")
        for source in self.case.sources:
            p.inject(source.stream, self._injectors[source.name])
        for spec in self._nodes:
            extractors: dict[str, Any] = {
                stream: mw.by_key if how == "by_key" else Extract(how) for stream, how in spec.inputs.items()
            }
            options: dict[str, Any] = {}
            if spec.combine:
                reduce = mw.combiners.Reduce(behaviour.merged, behaviour.SIZE)
                options["combine"] = reduce if spec.combine == "sum" else behaviour.in_place
            if spec.in_order:
                options["in_order"] = True
            if spec.kind == "top":
                stream = p.stream(next(iter(spec.inputs)))
                stream.top(spec.name, top_of(spec), by=number, window=window_of(spec))
                continue
            p.add(
                Drawn(spec) if spec.kind not in OPERATORS else operator(spec),
                name=spec.name,
                inputs=extractors,
                outputs=spec.outputs,
                late=spec.late,
                errors=spec.errors,
                watermark=spec.watermark,
                exactly_once=spec.exactly_once,
                strong_productions=spec.strong,
                **options,
            )
        for one in self.case.derived:
            _derive(p, one, lambda: side_table(self._wall))
        graph = build(p)
        for stream in graph.streams:
            self._taps.setdefault(stream, Tap())
        return replace(graph, sinks={stream: (self._taps[stream],) for stream in graph.streams})

    def _start(self, *, begins: bool = False) -> Driver:
        """A driver, and all that was lost with the last one, anew."""
        self._open_again()
        options = self._options
        driver = self.driver = Driver(
            self._graph(),
            self.store,
            Options(
                slots=self._slots,
                due_limit=options.due_limit,
                compact_below=4_000 if options.compact else 0,
                step_budget=options.budget or math.inf,
            ),
            clock=lambda: self._wall,
            owner="the differential test",
            start=Start.RUN if begins else Start.RECOVERY,
        )
        if self._begin is None:
            self._begin = driver.tally.totals.copy()
        driver.tally.baseline = self._begin
        self._tasks = Tasks(driver, self._order, self._cache)
        return driver

    def step(self, step: Step) -> None:
        """Runs the epochs of a step, until nothing is due any more."""
        nodes = self.case.at(step.number)
        if step.reopen and self.driver is not None:
            self._close(self.driver)
        driver = self.driver
        if driver is None or step.crash or nodes != self._nodes:
            self._nodes = nodes
            driver = self._start()
        if step.slots and step.slots != driver.layout.slots:
            self._slots = step.slots
            driver.rescale(step.slots)
        if step.layout:
            driver.lay_out(_intervals(driver, step.layout))
        for sent in step.records:
            record = mw.Record(value_of(sent.n), sent.timestamp, sent.key, id=sent.id)
            self._injectors[sent.source].records[str(sent.partition)].append(record)
        for (source, partition), mark in step.marks.items():
            marks = self._injectors[source].marks
            marks[str(partition)] = max(marks[str(partition)], mark)
        self._wall = max(self._wall, step.wall)
        self._epochs(fault=step.fault, rush=step.rush)
        if step.drain:
            self._to_the_end(step.fault)

    def _close(self, driver: Driver) -> None:
        """Ends a run, and begins the next one on the same store."""
        marks = [mark for injector in self._injectors.values() for mark in injector.marks.values()]
        if set(marks) == {mw.MAX_TIME}:
            self._to_the_end(0)
            driver.conclude()
            found = driver.sources.by_stream()
            for source in self.case.sources:
                injector = self._injectors[source.name]
                injector.marks = dict.fromkeys(injector.marks, found[source.stream])
        self._start(begins=True)

    def _epochs(self, *, fault: int, rush: bool) -> None:
        """The epoch of a step and those that continue it; in a rush these are left to the next step."""
        begun = False
        for turn in range(_MOST_EPOCHS):
            assert self.driver is not None
            begun = begun or not self.driver.authority.unfinished  # otherwise the last step is continued
            plan = self.driver.next_plan(Mode.FORCED)
            assert plan is not None
            self._epoch(plan, fault + turn if fault else 0)
            if begun and (rush or self.driver.settled):
                return
        raise AssertionError(f"a step did not end after {_MOST_EPOCHS} epochs")

    def _to_the_end(self, fault: int) -> None:
        """What a run does when its injectors are exhausted."""
        for turn in range(_MOST_EPOCHS):
            assert self.driver is not None
            plan = self.driver.next_plan_to_the_end()
            if plan is None:
                assert self.driver.ended
                return
            self._epoch(plan, fault + turn if fault else 0)
        raise AssertionError(f"a run did not end after {_MOST_EPOCHS} epochs")

    def _epoch(self, plan: Plan, fault: int) -> None:
        """One epoch; where everything dies in it, the next driver finishes it."""
        assert self.driver is not None
        self._tasks.begin(fault)
        try:
            self.driver.run(plan, self._tasks)
        except Killed:
            driver = self._start()
            again = driver.next_plan()
            assert again is not None
            assert again.epoch == plan.epoch
            driver.run(again, self._tasks)
        except mw.UserCodeError as error:
            if not isinstance(error.cause, BurntOut):
                raise
            driver = self._start()
            again = driver.next_plan()  # None: of the epoch nothing was kept, and it is planned anew
            if again is not None:
                driver.run(again, self._tasks)

    def report(self) -> Report:
        """The counts since the beginning."""
        assert self.driver is not None
        return self.driver.report()

    def outputs(self) -> dict[str, list[mw.Record]]:
        """By stream: what it carried since the last time."""
        return {stream: found for stream, tap in self._taps.items() if (found := tap.take())}


def _derive(p: mw.Pipeline, one: DerivedSpec, table: Callable[[], Any]) -> None:
    stream, *others = map(p.stream, one.parents)
    if others:
        stream = stream.union(*others)
    if one.how == "map":
        stream = stream.map(lambda value: transform("map", value)[0])
    elif one.how == "filter":
        stream = stream.filter(lambda value: transform("filter", value))
    elif one.how == "lookup":
        named = stream.map(lambda value: {"n": number(value), "m": number(value) % 4})
        found = named.lookup(table, on={"m": "id"}, missing="drop", refresh=1)
        stream = found.map(lambda value: {"n": value["n"] + value["plus"]})
    else:
        stream = stream.flat_map(lambda value: transform("flat_map", value))
    stream.named(one.name)


def _intervals(driver: Driver, seed: int) -> dict[int, Any]:
    """Any other intervals for some of the levels."""
    draw = random.Random(seed)
    found: dict[int, Any] = {}
    for level in range(1, len(driver.layout.intervals) + 1):
        if draw.random() < 0.7:
            firsts = {0, *(draw.randrange(driver.store.tablets) for _ in range(draw.randrange(6)))}
            cuts = [[first, draw.randrange(driver.layout.slots)] for first in sorted(firsts)]
            found[level] = (cuts, "drawn")
    return found
