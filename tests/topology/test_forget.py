"""The state of a computation that was taken out is kept until it is forgotten; then nothing is left of it."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.errors import StoreError
from millwheel.store.base import Shard
from millwheel.store.tools import forget as forgetting
from millwheel.store.tools.check import check
from millwheel.store.tools.forget import forget
from tests.store.driving import contents
from tests.topology.changing import Changing, Log

pytestmark = pytest.mark.usefixtures("on_each_store")


class Keep(mw.Computation):
    """Has something of everything: state, timers of both clocks, holds, IDs."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer("t", record.timestamp + 1_000)
        self.set_timer("w", 10**12, clock=mw.WALL)
        self.hold(record.timestamp)
        self.count("total", self.state["n"])

    def process_timer(self, timer: mw.Timer) -> None:
        """There is nothing to do."""


class World:
    def __init__(self) -> None:
        self.log = Log()
        self.running = Changing(self.pipeline("Stays", "Goes"))
        self.sent = 0

    def pipeline(self, *names: str, **options: Any) -> mw.Pipeline:
        p = mw.Pipeline("forgets")
        p.inject("in", self.log)
        for name in names:
            p.add(Keep(), name=name, inputs={"in": mw.by_key}, **options)
        return p

    def send(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            key = f"k{self.sent % 20}"
            self.log.append(mw.Record(key=key, value=1, timestamp=self.sent, id=self.sent))
        self.running.settle()

    def entries(self, number: int) -> int:
        found = 0
        for shard in self.running.store.shards:
            for key in contents(shard):
                found += key[:1] in b"RTIGBC" and int.from_bytes(key[1:3], "big") == number
        return found


def test_taken_out_its_state_is_kept_and_goes_on_when_it_comes_back() -> None:
    world = World()
    world.send(40)
    low = world.running.driver.authority.lows["Goes"]
    world.running.apply(world.pipeline("Stays"))
    world.send(40)
    world.running.apply(world.pipeline("Stays", "Goes"))
    assert world.running.driver.authority.lows["Goes"] == low, "its holds are known from the first moment"
    world.send(40)
    assert world.running.rows("Goes") == 20
    assert world.running.driver.tally.totals.value["records"] == {"Stays": 120, "Goes": 80}
    assert not check(world.running.store).problems


def test_one_that_is_away_keeps_its_keys_until_it_is_forgotten() -> None:
    world = World()
    world.send(20)
    world.running.apply(world.pipeline("Stays"))
    world.send(5)
    other = world.pipeline("Stays")
    other.add(Keep(), name="Goes", inputs={"in": lambda record: "one"})
    with pytest.raises(mw.PipelineError, match="'Goes', stream 'in': the key extractor was by_key"):
        world.running.apply(other)
    forget(world.running.store, "Goes", "a test")
    world.running.apply(other)
    world.send(5)
    assert world.running.rows("Goes") == 1


def test_forgotten_nothing_is_left_and_the_others_have_all_of_theirs() -> None:
    world = World()
    world.send(60)
    world.running.apply(world.pipeline("Stays"))
    number, other = (world.running.driver.numbers[name] for name in ("Goes", "Stays"))
    before = world.entries(other)
    found = forget(world.running.store, "Goes", "a test")
    assert found.entries > 100
    assert world.entries(number) == 0
    assert world.entries(other) == before
    assert not check(world.running.store).problems
    world.send(20)
    world.running.apply(world.pipeline("Stays", "Goes"))
    assert world.running.driver.numbers["Goes"] > max(number, other), "a number is never given twice"
    world.send(20)
    assert world.running.rows("Goes") == 20
    assert world.running.driver.authority.counter("Goes", 2) == 20
    assert not check(world.running.store).problems


def test_a_check_during_which_it_is_forgotten_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.send(40)
    world.running.apply(world.pipeline("Stays"))
    store = world.running.store
    original, opened = store.journal.snapshot, []

    def snapshot() -> Any:
        opened.append(1)
        if len(opened) == 2:  # the shards were read, with its rows
            forget(store, "Goes", "a test")
        return original()

    monkeypatch.setattr(store.journal, "snapshot", snapshot)
    assert not check(store).problems


def test_in_the_pipeline_that_runs_it_is_not_forgotten() -> None:
    world = World()
    world.send(10)
    with pytest.raises(StoreError, match="'Goes' is in the pipeline that runs"):
        forget(world.running.store, "Goes", "a test")
    with pytest.raises(StoreError, match="no computation 'Gose': it has Stays, Goes"):
        forget(world.running.store, "Gose", "a test")
    world.running.driver.close()
    forget(world.running.store, "Goes", "a test")
    assert world.entries(world.running.driver.numbers["Goes"]) == 0


def test_an_epoch_that_is_not_finished_still_needs_it() -> None:
    world = World()
    world.send(10)
    world.log.append(mw.Record(key="k", value=1, timestamp=50))
    plan = world.running.driver.next_plan()
    assert plan is not None
    world.running.driver.journal.plan(plan, world.running.driver.graph)
    world.running.driver.close()
    with pytest.raises(StoreError, match="is not finished"):
        forget(world.running.store, "Goes", "a test")


class _Killed(Exception):
    pass


def test_killed_in_the_middle_it_goes_on_when_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.send(60)
    number = world.running.driver.numbers["Goes"]
    world.running.apply(world.pipeline("Stays"))
    monkeypatch.setattr(forgetting, "BATCH", 7)
    clear = forgetting.clear
    left = 1

    def dies(shard: Shard, number: int) -> int:
        nonlocal left
        if not left:
            raise _Killed
        left -= 1
        return clear(shard, number)

    monkeypatch.setattr(forgetting, "clear", dies)
    with pytest.raises(_Killed):
        forget(world.running.store, "Goes", "a test")
    assert world.entries(number) > 0
    assert not check(world.running.store).problems, "what is being forgotten is nobody's any more"
    world.running.apply(world.pipeline("Stays", "Goes"))
    world.send(20)
    assert world.running.rows("Goes") == 20
    monkeypatch.setattr(forgetting, "clear", clear)
    world.running.apply(world.pipeline("Stays"))
    forget(world.running.store, "Goes", "a test")
    assert world.entries(number) == 0
    assert not check(world.running.store).problems


def test_forgotten_while_it_catches_up_it_starts_from_the_beginning_again() -> None:
    world = World()
    world.send(200)
    new = world.pipeline("Stays", "Goes", "Late", replay="earliest")
    world.running.apply(new)
    world.running.epoch()
    world.running.apply(world.pipeline("Stays", "Goes"))
    forget(world.running.store, "Late", "a test")
    world.running.apply(world.pipeline("Stays", "Goes", "Late", replay="earliest"))
    before = world.running.driver.tally.totals.value["records"]["Late"]
    world.running.settle()
    assert world.running.driver.tally.totals.value["records"]["Late"] == before + 200
