"""Runs the tasks of an epoch in any order, and loses some of them."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Iterable
from typing import Any

from millwheel.master.driver import Driver
from millwheel.worker.cache import Cache
from millwheel.worker.commit import settle
from millwheel.worker.envelope import Frame
from millwheel.worker.epoch import inject, run_epoch, run_level
from millwheel.worker.plan import Plan
from millwheel.worker.step import Worker


class Killed(BaseException):
    """The end of the process."""


class BurntOut(Exception):
    """What a hook raises once, and not when it is run again."""


class Fuse:
    """Lets the hook that is called as the n-th from now on raise."""

    left: float = math.inf

    def burn(self) -> None:
        """Called by each hook."""
        self.left -= 1
        if not self.left:
            raise BurntOut


FUSE = Fuse()


class _Mortal(Worker):
    """A worker that dies before, or right after, one of its steps."""

    lives: float = math.inf

    def step(self, *arguments: Any, **named: Any) -> Any:
        if self.lives <= 0:
            raise Killed
        outcome = super().step(*arguments, **named)
        self.lives -= 1
        if 0 < self.lives < 1:  # its write is there, and nobody hears of it
            raise Killed
        return outcome


class Tasks:
    """One worker after the other runs the tasks; a seed decides the order, and who dies when."""

    job: int | None = None

    def __init__(self, driver: Driver, order: random.Random, cache: Cache | None) -> None:
        self._driver = driver
        self._order = order
        self._cache = cache
        self._ticks = 0
        self._worker = self._new_worker()
        self._fault: random.Random | None = None

    def _new_worker(self) -> _Mortal:
        """A process on the same executor: the cache is still there."""
        driver = self._driver
        return _Mortal(driver.graph, driver.numbers, driver.store, self._order, self._tick, self._cache)

    def _tick(self) -> float:
        """A clock that moves when it is read: a budget is a number of looks at it."""
        self._ticks += 1
        return float(self._ticks)

    def begin(self, fault: int) -> None:
        """The next epoch, and what goes wrong in it."""
        self._fault = random.Random(fault) if fault else None
        lives = (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, math.inf)
        self._worker.lives = self._fault.choice(lives) if self._fault is not None else math.inf
        FUSE.left = math.inf
        if self._fault is not None and self._fault.random() < 0.3:
            FUSE.left, self._worker.lives = self._fault.randrange(1, 8), math.inf

    def execute(self, plan: Plan) -> list[Frame]:
        frames = self._run(plan)
        if self._fault is not None and self._fault.random() < 0.5:
            raise Killed  # all is done, and the driver does not hear of it
        return frames

    def close(self) -> None:
        """Nothing is held."""

    def _run(self, plan: Plan) -> list[Frame]:
        depth = len(self._driver.graph.levels)
        if plan.compact or not depth:
            return self._task(lambda worker: run_epoch(worker, plan))
        sent: dict[int, list[Frame]] = {}
        for task in self._shuffled(range(plan.tasks)):
            sent[task] = self._task(lambda worker, task=task: inject(worker, plan, task))  # type: ignore[misc]
        for level in range(1, depth + 1):
            after: dict[int, list[Frame]] = {}
            for slot in self._shuffled(range(plan.slots)):
                arrived = [sent[sender][slot] for sender in self._shuffled(sent)]
                after[slot] = self._task(_level(plan, level, slot, arrived))
            sent = after
        last = [sent[slot][slot] for slot in range(plan.slots)]
        if not any(frame.error for frame in last):
            settle(self._worker.take_deferred(plan))
        return last

    def _task(self, run: Callable[[Worker], list[Frame]]) -> list[Frame]:
        """One task; with a fault perhaps once more, by the same worker or by a new one."""
        found = _carried(run(self._worker))
        if self._fault is not None and self._fault.random() < 0.3 and not self._worker.weak:
            if self._fault.random() < 0.5:
                self._worker = self._new_worker()
            found = _carried(run(self._worker))
        return found

    def _shuffled(self, items: Iterable[int]) -> list[int]:
        order = list(items)
        self._order.shuffle(order)
        return order


def _level(plan: Plan, level: int, slot: int, arrived: list[Frame]) -> Callable[[Worker], list[Frame]]:
    return lambda worker: run_level(worker, plan, level, slot, arrived)


def _carried(frames: list[Frame]) -> list[Frame]:
    """Frames as they come out of the wire; errors travel as they are."""
    for frame in frames:
        if frame.error is not None and not isinstance(frame.error, bytes):
            frame.error = pickle.dumps(frame.error)
    return [Frame.from_bytes(frame.to_bytes()) for frame in frames]
