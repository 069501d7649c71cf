"""The executor of the simulator: tasks in any order, some of them more than once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from millwheel.errors import EngineError, InputError
from millwheel.master.driver import Driver
from millwheel.model.graph import Graph
from millwheel.store.memory import MemoryShard
from millwheel.testing.faults import Lost, World
from millwheel.testing.stale import go_on
from millwheel.worker.cache import Cache
from millwheel.worker.commit import StepWrite, committed, settle, weak_levels
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import inject, run_epoch, run_level
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker

SHARDS = 4
_TASK_ATTEMPTS = 4
_JOB_ATTEMPTS = 25
_RESIDENT = 0.5  # of the compact epochs are for a resident task


class Mishap(InputError):
    """A failure that is fixed before a driver starts again."""


_ROOM = (1_000, 10_000_000)  # bytes of a cache: one that evicts after each step, and one that never does


def _caches(seed: int) -> list[Cache | None]:
    """The caches of two workers: none, one for each, or one for both, by the seed."""
    kind, room = seed % 3, _ROOM[seed // 3 % 2]
    if not kind:
        return [None, None]
    shelves = [[MemoryShard([]) for _ in range(SHARDS)] for _ in range(2)]
    return [Cache((shelves[0] if kind == 1 else mine).__getitem__, room) for mine in shelves]


class SimulatedExecutor:
    """Runs tasks in random order, some more than once, on one of several workers."""

    job: int | None = None

    def __init__(self, world: World, graph: Graph, driver: Driver) -> None:
        self._world = world
        self._graph = graph
        self._driver = driver
        self._caches = _caches(world.seed)
        self._workers = [self._new_worker(number) for number in range(2)]

    def _new_worker(self, number: int) -> Worker:
        """A new process on the same executor: the cache stays."""
        world = self._world
        cache = self._caches[number]
        return Worker(self._graph, self._driver.numbers, world.store(), world.random, world.ticks, cache)

    def execute(self, plan: Plan) -> list[Frame]:
        for _ in range(_JOB_ATTEMPTS):
            try:
                return self._job(plan.to_bytes(), plan)
            except Lost:
                self._world.happened["job given up"] += 1
        raise EngineError("every attempt at a job was lost")

    def close(self) -> None:
        """Does nothing: no resource is held."""

    def _job(self, data: bytes, plan: Plan) -> list[Frame]:
        depth = len(self._graph.levels)
        if plan.compact or not depth:
            if self._world.happens("fail"):
                return [self._mishap()]
            frames = self._ask_resident(data) if self._world.random.random() < _RESIDENT else None
            return self._task(partial(_run_whole, data)) if frames is None else frames
        slots = range(plan.slots)
        sent = {task: self._task(partial(_inject, data, task)) for task in self._shuffled(range(plan.tasks))}
        for level in range(1, depth + 1):
            if self._world.happens("fail"):
                return [self._mishap()]
            arrived = {slot: [sent[sender][slot] for sender in self._shuffled(sent)] for slot in slots}
            sent = {slot: self._level_task(data, level, arrived, slot) for slot in self._shuffled(slots)}
        last = [sent[slot][slot] for slot in slots]
        if not any(frame.error for frame in last):
            self._settle(plan)
        return last

    def _level_task(
        self, data: bytes, level: int, arrived: Mapping[int, list[Frame]], slot: int
    ) -> list[Frame]:
        """One task of a level; a hook in it may raise, while other tasks have committed."""
        if self._world.happens("raises"):
            return [self._mishap() for _ in arrived]
        return self._task(partial(_run_level, data, level, slot, arrived[slot]))

    def _ask_resident(self, data: bytes) -> list[Frame] | None:
        """A resident task's answer to a compact epoch; None if it died or seems to."""
        world = self._world
        if world.happens("stale"):
            worker = self._new_worker(world.random.randrange(len(self._workers)))
            world.spawn(partial(go_on, world, partial(_run_whole, data, worker)))
            return None
        try:
            frames = self._attempt(partial(_run_whole, data))
        except Lost:
            return None
        return None if world.happens("silent") else frames

    def _settle(self, plan: Plan) -> None:
        """Makes the deferred writes of weak levels; lost ones cause a retry of the epoch.

        As on Spark, a level's writes wait until every later level has committed, on any worker.
        """
        deferred = [one for worker in self._workers for one in worker.take_deferred(plan)]
        depth = len(self._graph.levels)
        for level in sorted({one.level for one in deferred}, reverse=True):
            if not committed(self._driver.store, plan, range(level + 1, depth + 1)):
                raise Lost
            for one in deferred:
                if one.level == level:
                    self._settle_one(one)
        if not committed(self._driver.store, plan, weak_levels(self._graph)):
            raise Lost

    def _settle_one(self, deferred: StepWrite) -> None:
        """Makes one deferred write in its task, with which it may be lost."""
        self._world.point()
        self._world.current.in_task = True
        try:
            settle([deferred])
        except Lost:
            pass  # found missing below
        finally:
            self._world.current.in_task = False

    def _mishap(self) -> Frame:
        return Frame(1, 0, {}, error=pickle.dumps(Mishap("this input, or this hook, is to be fixed")))

    def _task(self, run: Callable[[Worker], list[Frame]]) -> list[Frame]:
        """Runs one task: retried if an attempt is lost, at most four times."""
        world = self._world
        for _ in range(_TASK_ATTEMPTS):
            try:
                answer = self._attempt(run)
            except Lost:
                continue
            if world.happens("repeat"):
                try:
                    second = self._attempt(run)
                except Lost:
                    return answer
                answer = world.random.choice((answer, second))
            return answer
        raise Lost

    def _attempt(self, run: Callable[[Worker], list[Frame]]) -> list[Frame]:
        world = self._world
        number = world.random.randrange(len(self._workers))
        world.point()
        world.current.in_task = True
        try:
            return _carried(run(self._workers[number]))
        except Lost:
            self._workers[number] = self._new_worker(number)
            raise
        finally:
            world.current.in_task = False

    def _shuffled(self, items: Iterable[int]) -> list[int]:
        order = list(items)
        self._world.random.shuffle(order)
        return order


def _run_whole(plan: bytes, worker: Worker) -> list[Frame]:
    return run_epoch(worker, Plan.from_bytes(plan), pickle.dumps)


def _inject(plan: bytes, task: int, worker: Worker) -> list[Frame]:
    return inject(worker, Plan.from_bytes(plan), task, pickle.dumps)


def _run_level(plan: bytes, level: int, slot: int, arrived: list[Frame], worker: Worker) -> list[Frame]:
    return run_level(worker, Plan.from_bytes(plan), level, slot, _carried(arrived), pickle.dumps)


def _carried(frames: Sequence[Frame]) -> list[Frame]:
    """Frames after encoding and decoding."""
    return [Frame.from_bytes(frame.to_bytes()) for frame in frames]
