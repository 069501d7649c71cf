"""When compact epochs go to a resident task, and when they are jobs: with a task that does as it is told."""

from __future__ import annotations

import pytest

from millwheel.errors import Interrupted
from millwheel.spark.resident import ResidentExecutor
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan


class _Jobs:
    """An executor that notes which epochs it ran."""

    job: int | None = 7

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.closed = False

    def execute(self, plan: Plan) -> list[Frame]:
        self.ran.append(plan.epoch)
        return [Frame(1, 0, {})]

    def close(self) -> None:
        self.closed = True


class _Task:
    """A resident task that answers until it is told to die."""

    job: int | None = 8

    def __init__(self) -> None:
        self.alive = True
        self.asked = 0
        self.dies: Exception | None = None
        self.idle = False
        self.ended = False

    def ask(self, plan: bytes) -> list[bytes] | None:
        self.asked += 1
        if self.dies is not None:
            self.alive = False
            raise self.dies
        return None if self.idle else [Frame(1, 0, {}).to_bytes()]

    def end(self, seconds: float = 0.0) -> None:
        self.ended = True

    def cancel(self) -> None:
        self.alive = False


class _World:
    """An executor, and what it has started."""

    def __init__(self) -> None:
        self.jobs = _Jobs()
        self.tasks: list[_Task] = []
        self.refuses = False
        self.now = 100.0
        self.epoch = 0
        self.executor = ResidentExecutor(self.jobs, self._start, after=3, idle_after=10.0, clock=self._clock)

    def _clock(self) -> float:
        return self.now

    def _start(self) -> _Task | None:
        if self.refuses:
            return None
        self.tasks.append(_Task())
        return self.tasks[-1]

    def run(self, *, compact: bool = True, times: int = 1) -> None:
        for _ in range(times):
            self.epoch += 1
            plan = Plan(
                epoch=self.epoch,
                now=0,
                slots=1,
                intervals=(),
                ranges=(),
                tasks=0,
                sources={},
                ignored={},
                before={},
                lows={},
                holds={},
                compact=compact,
                drain=False,
                budget=1.0,
                due_limit=1,
            )
            assert len(self.executor.execute(plan)) == 1


def test_it_starts_after_three_compact_epochs_in_a_row_and_serves_from_then_on() -> None:
    world = _World()
    world.run(times=2)
    world.run(compact=False)
    world.run(times=20)
    assert world.jobs.ran == [1, 2, 3, 4, 5, 6]
    assert [task.asked for task in world.tasks] == [17]
    assert world.executor.job == 8


def test_epochs_that_are_far_apart_are_not_in_a_row() -> None:
    world = _World()
    for _ in range(10):
        world.run()
        world.now += 11.0
    assert not world.tasks


def test_a_wide_epoch_ends_it_before_it_runs() -> None:
    world = _World()
    world.run(times=4)
    world.run(compact=False)
    assert world.tasks[0].ended
    assert world.jobs.ran == [1, 2, 3, 5]
    world.run(times=4)
    assert len(world.tasks) == 2


def test_an_epoch_in_which_it_dies_is_run_again_as_a_job_and_the_next_attempt_comes_later() -> None:
    world = _World()
    world.run(times=4)
    world.tasks[0].dies = ConnectionResetError("killed")
    world.run()
    assert world.jobs.ran == [1, 2, 3, 5]
    world.run(times=11)
    assert len(world.tasks) == 1
    world.run(times=2)
    assert len(world.tasks) == 2


def test_one_that_was_idle_is_replaced_without_a_longer_wait() -> None:
    world = _World()
    world.run(times=4)
    world.tasks[0].idle = True
    world.run()
    assert world.jobs.ran == [1, 2, 3, 5]
    world.run()
    assert len(world.tasks) == 2


def test_where_none_can_start_every_epoch_is_a_job() -> None:
    world = _World()
    world.refuses = True
    world.run(times=40)
    assert world.jobs.ran == list(range(1, 41))


def test_an_epoch_that_is_cancelled_in_it_is_not_run_again() -> None:
    world = _World()
    world.run(times=4)
    world.tasks[0].dies = ConnectionResetError("cancelled")
    world.executor.cancel()
    with pytest.raises(Interrupted):
        world.run()
    assert world.jobs.ran == [1, 2, 3]


def test_closing_ends_it_and_the_jobs() -> None:
    world = _World()
    world.run(times=4)
    world.executor.close()
    assert world.tasks[0].ended
    assert world.jobs.closed
