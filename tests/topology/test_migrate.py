"""A computation of a newer version takes over the state of the older one, key by key."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.store.keyspace import after, row_prefix
from millwheel.store.row import decode_row
from millwheel.store.tools.check import check
from tests.topology.changing import Changing, Log

pytestmark = pytest.mark.usefixtures("on_each_store")


class Count(mw.Computation):
    """Version 1: a number by word."""

    def process_record(self, record: mw.Record) -> None:
        if record.value == "timer":
            self.set_timer("later", record.timestamp + 100)
        elif record.value == "delete":
            del self.state
        else:
            self.add()

    def process_timer(self, timer: mw.Timer) -> None:
        """There is nothing to do."""

    def add(self) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("out", self.state["n"])


class Totals(Count):
    """Version 2: another form."""

    version = 2

    def initial_state(self) -> dict[str, Any]:
        return {"total": 0}

    def migrate(self, old_version: int, state: Any) -> Any:
        assert old_version == 1
        assert self.key in ("a", "b", "c", "bad", "good"), "it knows whose state it is"
        return {"total": state["n"] * 100}

    def add(self) -> None:
        self.state["total"] += 1
        self.produce("out", self.state["total"])


class Third(Totals):
    """Version 3: knows both."""

    version = 3

    def migrate(self, old_version: int, state: Any) -> Any:
        if old_version == 1:
            state = super().migrate(1, state)
        return {"total": state["total"] + 10_000 * old_version}


class World:
    def __init__(self) -> None:
        self.log, self.out = Log(), mw.sinks.Collect()
        self.running = Changing(self.pipeline(Count()))
        self.time = 0

    def pipeline(self, computation: mw.Computation, **options: Any) -> mw.Pipeline:
        p = mw.Pipeline("migrates")
        p.inject("in", self.log)
        p.add(computation, name="C", inputs={"in": mw.by_key}, outputs=["out"], **options)
        p.sink("out", self.out)
        return p

    def send(self, key: str, value: str = "count") -> None:
        self.time += 1
        self.log.append(mw.Record(key=key, value=value, timestamp=self.time))
        self.running.settle()

    def last(self) -> Any:
        return self.out.records[-1].value

    def versions(self) -> dict[str, int]:
        found = {}
        prefix = row_prefix(self.running.driver.numbers["C"])
        for shard in self.running.store.shards:
            with shard.snapshot() as snapshot:
                for key, value in snapshot.scan(prefix, after(prefix)):
                    found[key[len(prefix) + 8 :].decode()] = decode_row(value).version
        return found


def test_state_is_migrated_when_a_key_is_next_used_and_not_before() -> None:
    world = World()
    for key in ("a", "a", "b"):
        world.send(key)
    world.running.apply(world.pipeline(Totals()))
    world.send("a")
    assert world.last() == 201
    assert world.versions() == {"a": 2, "b": 1}
    world.send("a")
    assert world.last() == 202, "migrated once"
    world.send("b")
    assert world.last() == 101
    world.send("new")
    assert world.last() == 1, "a key never seen starts with the new initial state"
    assert not check(world.running.store).problems


def test_versions_may_be_skipped() -> None:
    world = World()
    world.send("a")
    world.send("b")
    world.running.apply(world.pipeline(Totals()))
    world.send("a")
    world.running.apply(world.pipeline(Third()))
    world.send("a")
    assert world.last() == 101 + 20_000 + 1
    world.send("b")
    assert world.last() == 100 + 10_000 + 1


def test_a_row_whose_state_is_not_used_keeps_its_version() -> None:
    world = World()
    world.send("a")
    world.running.apply(world.pipeline(Totals()))
    world.send("a", "timer")
    assert world.versions() == {"a": 1}
    world.send("a", "count")
    assert world.last() == 101
    world.send("a", "delete")
    world.send("a")
    assert world.last() == 1


def test_it_is_the_same_after_a_crash_at_every_step() -> None:
    world = World()
    for key in "abc":
        world.send(key)
    world.running.apply(world.pipeline(Totals()))
    for key, wanted in (("a", 101), ("b", 101), ("a", 102)):
        world.log.append(mw.Record(key=key, value="count", timestamp=9))
        plan = world.running.driver.next_plan()
        assert plan is not None
        world.running.driver.journal.plan(plan, world.running.driver.graph)
        world.running.executor.execute(plan)  # the intervals commit, and the driver dies
        world.running.start(world.pipeline(Totals()))
        world.running.settle()
        assert world.last() == wanted


def test_an_older_version_is_refused_and_told_what_to_do() -> None:
    world = World()
    world.send("a")
    world.running.apply(world.pipeline(Totals()))
    world.send("a")
    with pytest.raises(mw.PipelineError, match=r"state of version 2, and the code is version 1.*forget"):
        world.running.apply(world.pipeline(Count()))
    with pytest.raises(mw.PipelineError, match="state of version 2"):
        world.running.start(world.pipeline(Count()))


class Lacking(Count):
    version = 2


def test_a_version_without_a_migration_is_refused_before_it_is_applied() -> None:
    world = World()
    world.send("a")
    with pytest.raises(mw.PipelineError, match=r"migrate\(\) cannot convert state of version 1 to version 2"):
        world.running.apply(world.pipeline(Lacking()))


class Picky(Totals):
    def migrate(self, old_version: int, state: Any) -> Any:
        if state["n"] == 3:
            raise ValueError("three")
        return super().migrate(old_version, state)


def test_a_migration_that_fails_is_an_error_of_its_record_like_any_other() -> None:
    world = World()
    for key in ("bad", "bad", "bad", "good"):
        world.send(key)
    world.running.start(world.pipeline(Picky(), errors="divert"))
    world.send("good")
    world.send("bad")
    assert world.running.driver.tally.totals.value["failed"] == {"C": 1}
    assert world.versions() == {"bad": 1, "good": 2}
    world.running.start(world.pipeline(Picky()))
    with pytest.raises(mw.UserCodeError, match=r"state of version 1 cannot be migrated to version 2.*three"):
        world.send("bad")


@pytest.mark.parametrize("version", [0, -1, 1 << 16, "2", True, None])
def test_a_version_is_a_number(version: Any) -> None:
    computation = Count()
    computation.version = version
    with pytest.raises(mw.PipelineError, match="its version is a number from 1 to 65535"):
        World().pipeline(computation)
