"""A pipeline on a store that counts what it is asked, with caches before it, in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.options import Options
from millwheel.master.planner import Mode
from millwheel.master.status import Report
from millwheel.model.graph import build
from millwheel.store.base import Guard, Store
from millwheel.store.memory import MemoryShard, MemoryStore
from millwheel.worker.cache import Cache
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import run_epoch
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker

ROOM = 10_000_000


class Asked:
    """A shard, and how many entries of each letter its readers were given or asked for."""

    def __init__(self, shard: MemoryShard, asked: Counter[str]) -> None:
        self._shard = shard
        self._asked = asked

    @contextmanager
    def snapshot(self) -> Iterator[Asked]:
        yield self

    def get(self, key: bytes) -> bytes | None:
        self._asked[chr(key[0])] += 1
        return self._shard.get(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        for key in keys:
            self._asked[chr(key[0])] += 1
        return self._shard.get_each(keys)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._asked[chr(start[0])] += 1
        return self._shard.scan(start, stop)

    def prefetch(self, ranges: Sequence[tuple[bytes, bytes, int]]) -> None:
        """Said beforehand is not asked yet."""

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        guard: Guard | None = None,
        *,
        kept: bool = False,
    ) -> None:
        self._shard.write(puts, deletes, guard, kept=kept)


class Running:
    """A pipeline that is fed by hand. ``workers`` take turns, each with its own cache or none."""

    def __init__(self, computation: mw.Computation, caches: Sequence[Cache | None]) -> None:
        pipeline = mw.Pipeline("cached")
        self.injector = mw.injectors.Records([], per_epoch=10**9)
        self.sink = mw.sinks.Collect()
        pipeline.inject("in", Fed())
        pipeline.add(computation, name="C", inputs={"in": mw.by_key}, outputs=["out"])
        pipeline.sink("out", self.sink)
        graph = build(pipeline)
        self.fed: Fed = graph.sources[0].injector  # type: ignore[assignment]
        self.asked: Counter[str] = Counter()
        memory = MemoryStore(1)
        self.store: Store = memory
        memory.shards = [Asked(shard, self.asked) for shard in memory.all_shards[1:]]  # type: ignore[arg-type]
        self._now = 0
        self.driver = Driver(
            graph, memory, Options(slots=1, step_budget=1e9), clock=lambda: self._now, owner="a test"
        )
        self.workers = [Worker(graph, self.driver.numbers, memory, cache=cache) for cache in caches]
        self._turn = 0
        self.job = None

    def epoch(self, *records: tuple[str, Any, int], watermark: int) -> Counter[str]:
        """One epoch on the next worker; gives what the store was asked in it."""
        self.fed.records += [mw.Record(key=key, value=value, timestamp=time) for key, value, time in records]
        self.fed.watermark = watermark
        plan = self.driver.next_plan(Mode.FORCED)
        assert plan is not None
        self.asked.clear()
        self.driver.run(plan, self)
        return Counter(self.asked)

    def execute(self, plan: Plan) -> list[Frame]:
        self._turn += 1
        return run_epoch(self.workers[self._turn % len(self.workers)], plan)

    def close(self) -> None:
        """Nothing is held."""

    def report(self) -> Report:
        return self.driver.report()


class Fed(mw.Injector):
    """What a test hands over, up to a watermark that it sets."""

    def __init__(self) -> None:
        self.records: list[mw.Record] = []
        self.watermark = mw.MIN_TIME

    def poll(self) -> dict[str, Any]:
        return {"fed": len(self.records)}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        return self.records[start or 0 : end]

    def low_watermark(self, partition: str, offset: Any) -> int:
        return self.watermark

    def bound(self, partition: str, start: Any, end: Any, records: int) -> Any:
        return end


class Windows(mw.Computation):
    """Buffers a window's values in the key's row until its end."""

    def process_record(self, record: mw.Record) -> None:
        end = record.timestamp // 100 * 100 + 100
        self.state.setdefault(end, []).append(record.value)
        self.set_timer(str(end), end)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("out", self.state.pop(timer.timestamp), timestamp=timer.timestamp)
        if not self.state:
            del self.state


class Profile(mw.Computation):
    """Remembers the first value of a key, and tells how others differ: it reads much and writes little."""

    def process_record(self, record: mw.Record) -> None:
        first = self.state.setdefault("first", record.value)
        self.produce("out", record.value - first)


def shelves() -> tuple[Cache, MemoryShard]:
    """A cache, and where it keeps what it keeps."""
    return cache_of(ROOM)


def cache_of(room: int) -> tuple[Cache, MemoryShard]:
    """A cache with so much room."""
    shelf = MemoryShard([])
    return Cache(lambda shard: shelf, room), shelf
