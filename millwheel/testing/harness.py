"""The harness: a pipeline with a manual clock, in this process.

It runs the same code as on Spark, the driver, the worker and the watermarks, over a store in memory;
only the carrier of the frames differs.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from millwheel.errors import InputError, PipelineError, shorten
from millwheel.master.driver import Driver
from millwheel.master.ending import Start
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import DUE_LIMIT, Options
from millwheel.master.planner import Mode
from millwheel.master.status import Report
from millwheel.model.codec import pack, unpack
from millwheel.model.graph import Graph, build
from millwheel.model.injector import Injector, Offset
from millwheel.model.keys import tablet
from millwheel.model.pipeline import ERRORS_SUFFIX, LATE_SUFFIX, Pipeline
from millwheel.model.record import Record, RecordId
from millwheel.model.sink import Sink
from millwheel.model.time import MAX_TIME, MIN_TIME, WALL, WATERMARK
from millwheel.model.timer import Timer
from millwheel.sinks.collect import Collect
from millwheel.store.memory import MemoryStore
from millwheel.store.row import Row
from millwheel.store.window_row import find_row
from millwheel.watch.explain import Explanation, explain
from millwheel.worker.step import Worker


class _Sent(Injector):
    """Replaces an injector of the pipeline: sent records, and a manual watermark."""

    def __init__(self, original: Injector) -> None:
        self.errors = original.errors
        self.id_retention = original.id_retention
        self.records: list[Record] = []
        self.watermark = MIN_TIME

    def poll(self) -> Mapping[str, Offset]:
        return {"sent": len(self.records)}

    def read(self, partition: str, start: Offset, end: Offset) -> Iterable[Record]:
        return self.records[start or 0 : end]

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return self.watermark

    def bound(self, partition: str, start: Offset, end: Offset, records: int) -> Offset:
        return end


class Harness:
    """Runs a pipeline; each `send`, `advance` and `advance_wall` is one epoch.

    >>> import millwheel as mw
    >>> class Counter(mw.Computation):
    ...     def process_record(self, record):
    ...         self.state["n"] = self.state.get("n", 0) + 1
    ...         self.produce("counts", self.state["n"])
    >>> p = mw.Pipeline("counting")
    >>> _ = p.inject("queries", mw.injectors.Records([]))
    >>> p.add(Counter(), inputs={"queries": mw.by("query")}, outputs=["counts"])
    >>> h = Harness(p)
    >>> h.send("queries", {"query": "cat videos"}, timestamp=3 * mw.SECOND)
    >>> h.send("queries", {"query": "cat videos"}, timestamp=4 * mw.SECOND)
    >>> [record.value for record in h.output("counts")]
    [1, 2]
    >>> h.state("Counter", "cat videos")
    {'n': 2}
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        seed: int = 0,
        slots: int = 1,
        due_limit: int = DUE_LIMIT,
        step_budget: float = math.inf,
    ) -> None:
        self._graph, self._sent, self.taps = _stand_in(pipeline)
        self.store = MemoryStore(1 << (slots - 1).bit_length())
        """The store of the run: for checks, tools, and damage by a test."""
        self._options = Options(slots=slots, due_limit=due_limit, step_budget=step_budget)
        self._order = random.Random(seed)
        self._wall = 0
        self._nested = 0
        self._draining = False
        self._start()
        self._begin = self.driver.tally.totals.copy()

    def _start(self, start: Start = Start.RECOVERY) -> None:
        self.driver = Driver(
            self._graph,
            self.store,
            self._options,
            clock=lambda: self._wall,
            owner="the harness",
            start=start,
        )
        worker = Worker(self._graph, self.driver.numbers, self.store, self._order)
        self._executor = LocalExecutor(worker)

    def send(
        self, stream: str, value: Any, timestamp: int, id: RecordId | None = None, key: str | None = None
    ) -> None:
        """Injects one record; without an ``id`` it is never a duplicate."""
        sent = self._injector(stream)
        try:
            copied = unpack(pack(value))
        except Exception as error:
            raise InputError(
                f"stream {stream!r}: the value {shorten(value)} cannot be sent "
                f"({type(error).__name__}: {error}); a value has MessagePack types "
                "(None, bool, int, float, str, bytes, list, dict), or a "
                "registered dataclass"
            ) from error
        record = Record(copied, timestamp, key or "", stream, id)
        with self._call():
            sent.records.append(record)

    def advance(self, stream: str, watermark: int) -> None:
        """Moves the low watermark of a stream's injector."""
        sent = self._injector(stream)
        with self._call():
            sent.watermark = max(sent.watermark, watermark)

    def advance_wall(self, time: int) -> None:
        """Moves the wall clock."""
        with self._call():
            self._wall = max(self._wall, time)

    def drain(self) -> None:
        """Moves every injector to its end, as the end of a run does."""
        with self._call():
            self._draining = True
            for sent in self._sent.values():
                sent.watermark = MAX_TIME

    def crash(self) -> None:
        """Loses everything but the store, and recovers."""
        self.store.close()
        self._start()

    def reopen(self) -> None:
        """Ends the run, and starts the next one on the same store.

        If every injector is at its end, or was drained, the run closes: the watermarks go back to how far
        event time was, each stream's to its newest timestamp plus one. Otherwise it was stopped, and
        nothing changes.

        >>> import millwheel as mw
        >>> p = mw.Pipeline("echo")
        >>> _ = p.inject("in", mw.injectors.Records([]))
        >>> class Echo(mw.Computation):
        ...     def process_record(self, record):
        ...         pass
        >>> p.add(Echo(), inputs={"in": mw.by_key})
        >>> h = Harness(p)
        >>> h.send("in", "Monday", timestamp=5)
        >>> h.drain()
        >>> h.low_watermark("Echo") == mw.MAX_TIME
        True
        >>> h.reopen()
        >>> h.low_watermark("Echo")
        6
        """
        if self._nested:
            raise PipelineError("reopen() ends a run: call it outside of `with h.epoch()`")
        if all(sent.watermark == MAX_TIME for sent in self._sent.values()):
            self._close()
        self.store.close()
        self._start(Start.RUN)

    def _close(self) -> None:
        driver = self.driver
        while (plan := driver.next_plan_to_the_end()) is not None:
            driver.run(plan, self._executor)
        driver.conclude()
        for stream, mark in driver.sources.by_stream().items():
            self._sent[stream].watermark = mark

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Makes the calls inside it one epoch."""
        with self._call():
            yield

    def output(self, stream: str) -> list[Record]:
        """The records of a stream so far, in the order of the epochs."""
        tap = self.taps.get(stream)
        if tap is None:
            owner = stream.removesuffix(ERRORS_SUFFIX).removesuffix(LATE_SUFFIX)
            if owner != stream and (owner in self._graph.nodes or owner in self._sent):
                return []
            raise PipelineError(f"there is no stream {stream!r}: there are {', '.join(sorted(self.taps))}")
        return tap.records

    def state(self, computation: str, key: str) -> Any:
        """A key's state; None if the key has no row."""
        row = self.row(computation, key)
        if row is None or row.state is None:
            return None
        return self._graph.nodes[computation].computation.codec.decode(row.state)

    def timers(self, computation: str, key: str) -> list[Timer]:
        """A key's pending timers, in the order in which they will fire."""
        row = self.row(computation, key)
        if row is None:
            return []
        timers = [Timer(tag, time, WATERMARK) for tag, time in row.timers.items()]
        timers += [Timer(tag, time, WALL) for tag, time in row.wall.items()]
        return sorted(timers, key=lambda timer: (timer.timestamp, timer.tag))

    def low_watermark(self, computation: str) -> int:
        """A computation's low watermark (4.5)."""
        self._node(computation)
        return self.driver.authority.lows[computation]

    def explain_watermark(self, computation: str) -> Explanation:
        """Why a computation's low watermark has its value."""
        return explain(self.store, computation)

    def status(self) -> Report:
        """The counts since the harness was made, crashes included."""
        self.driver.tally.baseline = self._begin
        return self.driver.report()

    def _injector(self, stream: str) -> _Sent:
        if stream not in self._sent:
            raise PipelineError(
                f"nobody injects {stream!r}: the injected streams are {', '.join(self._sent)}"
            )
        return self._sent[stream]

    def _node(self, computation: str) -> None:
        if computation not in self._graph.nodes:
            raise PipelineError(
                f"there is no computation {computation!r}: there are {', '.join(self._graph.nodes)}"
            )

    def row(self, computation: str, key: str) -> Row | None:
        """A key's row in the store; None if it has none."""
        self._node(computation)
        shards = self.store.shards
        tablets = self.store.tablets
        shard = shards[tablet(key, tablets) * len(shards) // tablets]
        with shard.snapshot() as snapshot:
            return find_row(snapshot, self.driver.numbers[computation], key, tablets)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """One call, or the outermost of several, is one epoch; undone if it fails."""
        if self._nested:
            yield
            return
        wall = self._wall
        before = {stream: (len(sent.records), sent.watermark) for stream, sent in self._sent.items()}
        collected = [(tap, copy.copy(tap._shards)) for tap in self._collects()]
        self.store.mark()
        self._nested += 1
        try:
            yield
            self._run_once()
            while self._draining and self.driver.held:
                self._run_once(Mode.DRAIN)
        except BaseException:
            self._wall = wall
            for stream, (length, watermark) in before.items():
                del self._sent[stream].records[length:]
                self._sent[stream].watermark = watermark
            for tap, shards in collected:
                tap._shards = shards
            self.store.undo()
            self.crash()
            raise
        finally:
            self._nested -= 1
            self._draining = False

    def _collects(self) -> list[Collect]:
        sinks = [sink for part in self._graph.sinks.values() for sink in part]
        return [sink for sink in sinks if isinstance(sink, Collect)]

    def _run_once(self, mode: Mode = Mode.FORCED) -> None:
        """One epoch, and those that continue it."""
        while True:
            plan = self.driver.next_plan(mode)
            assert plan is not None
            self.driver.run(plan, self._executor)
            if self.driver.settled:
                return


def _stand_in(pipeline: Pipeline) -> tuple[Graph, dict[str, _Sent], dict[str, Collect]]:
    """The graph with manual injectors, and a tap on every stream.

    Of the pipeline's own sinks only those in memory are used: a test does not write elsewhere.
    """
    graph = build(pipeline)
    sent: dict[str, _Sent] = {}
    sources = []
    for source in graph.sources:
        if source.stream not in sent:
            sent[source.stream] = _Sent(source.injector)
            sources.append(replace(source, injector=sent[source.stream]))
    names = {source.name for source in sources}
    producers = {
        stream: tuple(name for name in found if isinstance(name, str) or name in names)
        for stream, found in graph.producers.items()
    }
    taps = {stream: Collect() for stream in graph.streams}
    sinks: dict[str, tuple[Sink, ...]] = {
        stream: tuple(sink for sink in found if sink.in_driver) for stream, found in graph.sinks.items()
    }
    sinks = {stream: found for stream, found in sinks.items() if found}
    for stream, tap in taps.items():
        sinks[stream] = (*sinks.get(stream, ()), tap)
    graph = replace(graph, sources=tuple(sources), producers=producers, sinks=sinks)
    return graph, sent, taps
