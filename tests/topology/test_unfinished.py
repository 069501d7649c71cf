"""An epoch that another graph has started is finished by that graph, or was never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.worker.epoch import inject, run_level
from millwheel.worker.step import Worker
from tests.topology.changing import Changing, Log

pytestmark = pytest.mark.usefixtures("on_each_store")


class World:
    def __init__(self) -> None:
        self.log, self.out = Log(), mw.sinks.Collect()
        self.running = Changing(self.pipeline())

    def pipeline(self, *names: str, **options: Any) -> mw.Pipeline:
        p = mw.Pipeline("unfinished")
        p.inject("in", self.log)
        p.add(_Tell(), name="Tell", inputs={"in": mw.by_key}, outputs=["out"], **options)
        p.sink("out", self.out)
        for name in names:
            p.add(_Tell(), name=name, inputs={"out": lambda record: "one"}, outputs=[f"from {name}"])
        return p

    def begin(self, *, execute: bool) -> None:
        """An epoch, of which the driver dies before, or after, something of it is in the store."""
        self.log.append(mw.Record(key="k", value=len(self.log.all()), timestamp=1))
        driver = self.running.driver
        plan = driver.next_plan()
        assert plan is not None
        driver.journal.plan(plan, driver.graph)
        if execute:
            self.running.executor.execute(plan)

    def seen(self) -> list[Any]:
        return [record.value for record in self.out.records]


class _Tell(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        for stream in self._context.node.outputs:  # type: ignore[attr-defined]
            self.produce(stream, record.value)


def test_of_which_nothing_is_there_is_forgotten() -> None:
    world = World()
    world.begin(execute=False)
    world.running.start(world.pipeline("More"))
    world.running.settle()
    assert world.seen() == [0]


def test_of_which_something_is_there_is_refused_until_the_former_graph_has_finished_it() -> None:
    world = World()
    world.begin(execute=True)
    with pytest.raises(mw.PipelineError, match="run the former pipeline once more"):
        world.running.start(world.pipeline("More"))
    world.running.start(world.pipeline())
    world.running.settle()
    world.running.apply(world.pipeline("More"))
    world.begin(execute=False)
    world.running.settle()
    assert world.seen() == [0, 1]


def test_with_weak_productions_something_may_have_left_though_nothing_is_there() -> None:
    world = World()
    world.running.start(world.pipeline(strong_productions=False))
    world.begin(execute=False)
    with pytest.raises(mw.PipelineError, match="run the former pipeline once more"):
        world.running.start(world.pipeline("More"))


def test_a_zombie_of_the_forgotten_epoch_writes_nothing_any_more() -> None:
    world = World()
    world.begin(execute=False)
    plan, executor = world.running.driver.journal.recover().plan, world.running.executor
    assert plan is not None
    world.running.start(world.pipeline("More"))
    frames = executor.execute(plan)
    assert all(isinstance(frame.error, mw.MillWheelError) for frame in frames)
    world.running.settle()
    assert world.seen() == [0]


def test_records_that_get_other_keys_meanwhile_are_neither_lost_nor_counted_twice() -> None:
    world = World()

    def keyed(field: str) -> mw.Pipeline:
        p = mw.Pipeline("unfinished")
        p.inject("in", world.log)
        p.add(_Tell(), name="Keyed", inputs={"in": mw.by(field)}, outputs=["out"])
        p.sink("out", world.out)
        return p

    world.running.start(keyed("a"))
    numbers = range(40)
    world.log.append(*(mw.Record(value={"a": n, "b": -n}, timestamp=1) for n in numbers))
    driver = world.running.driver
    plan = driver.next_plan()
    assert plan is not None
    driver.journal.plan(plan, driver.graph)
    worker = Worker(driver.graph, driver.numbers, world.running.store)
    (frames,) = [inject(worker, plan, task) for task in range(plan.tasks)]
    run_level(worker, plan, 1, 0, [frames[0]])  # the other slot dies
    with pytest.raises(mw.PipelineError, match="another key extractor of 'Keyed' and is not finished"):
        world.running.start(keyed("b"))
    world.running.start(keyed("a"))
    world.running.settle()
    world.running.start(keyed("b"))
    world.running.settle()
    assert sorted(value["a"] for value in world.seen()) == list(numbers)


def test_without_computations_the_sinks_may_have_it_though_nothing_is_there(tmp_path: Path) -> None:
    world = World()
    sink = mw.sinks.JsonLines(tmp_path / "out")

    def plain(*names: str) -> mw.Pipeline:
        p = mw.Pipeline("unfinished")
        p.inject("in", world.log).filter(bool).named("kept").sink(sink)
        for name in names:
            p.add(_Tell(), name=name, inputs={"in": mw.by_key}, outputs=["out"])
        return p

    world.running.start(plain())
    world.log.append(*(mw.Record(key="k", value=n, timestamp=n) for n in range(1, 21)))
    world.begin(execute=True)
    with pytest.raises(mw.PipelineError, match="run the former pipeline once more"):
        world.running.start(plain("More"))
    world.running.start(plain())
    world.running.settle()
    world.running.start(plain("More"))
    world.running.settle()
    assert [record.value for record in sink.records()] == [record.value for record in world.log.all()]
