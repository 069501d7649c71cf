"""A computation that is added with ``replay="earliest"`` sees every record from the beginning, once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.injector import Offset
from tests.computations import Idle
from tests.topology.changing import Changing, Log

pytestmark = pytest.mark.usefixtures("on_each_store")


class Tell(mw.Computation):
    """Passes on what it gets, with its place in the order of its key."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def process_record(self, record: mw.Record) -> None:
        assert not record.late, "what is replayed is not late"
        assert record.stream == "in"
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce(self.stream, [record.value, self.state["n"]])


class Windows(mw.Computation):
    """Counts a key's records per ten units of time."""

    def process_record(self, record: mw.Record) -> None:
        window = record.timestamp // 10
        self.state[window] = self.state.get(window, 0) + 1
        self.set_timer(str(window), (window + 1) * 10)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("windows", [int(timer.tag), self.state.pop(int(timer.tag))])


class World:
    """A log, and what comes out of the pipelines that read it."""

    def __init__(self, partitions: int = 1, **options: Any) -> None:
        self.log = Log(partitions)
        self.sinks = {name: mw.sinks.Collect() for name in ("old", "new", "windows")}
        self.rng = random.Random(5)
        self.sent = 0
        self.running = Changing(self.pipeline(), **options)

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self.sent
            record = mw.Record(key=f"k{number % 5}", value=number, timestamp=number)
            self.log.append(record, partition=str(number % len(self.log.parts)))
            self.sent += 1

    def pipeline(self, *names: str, replay: Any = "earliest") -> mw.Pipeline:
        p = mw.Pipeline("replays")
        p.inject("in", self.log)
        p.add(Tell("old"), name="Old", inputs={"in": mw.by_key}, outputs=["old"])
        p.sink("old", self.sinks["old"])
        if "New" in names:
            p.add(Tell("new"), name="New", inputs={"in": mw.by_key}, outputs=["new"], replay=replay)
            p.sink("new", self.sinks["new"])
        if "Windows" in names:
            p.add(Windows(), inputs={"in": mw.by_key}, outputs=["windows"], replay=replay)
            p.sink("windows", self.sinks["windows"])
        return p

    def seen(self, name: str) -> list[int]:
        return [record.value[0] for record in self.sinks[name].records]

    def check(self, name: str) -> None:
        """Everything, once, and for each key in the order in which it was sent."""
        by_key: dict[str, list[list[int]]] = {}
        for record in self.sinks[name].records:
            by_key.setdefault(record.key, []).append(record.value)
        for key, found in by_key.items():
            wanted = [number for number in range(self.sent) if f"k{number % 5}" == key]
            in_order = sorted(found, key=lambda pair: pair[1])
            assert [place for _, place in in_order] == list(range(1, len(wanted) + 1))
            assert Counter(number for number, _ in found) == Counter(wanted)
            if len(self.log.parts) == 1:
                assert [number for number, _ in in_order] == wanted
        assert len(by_key) == 5


@pytest.mark.parametrize("partitions", [1, 3])
def test_it_sees_everything_once_and_the_others_nothing_twice(partitions: int) -> None:
    world = World(partitions, bound=20)
    world.send(200)
    world.running.settle()
    world.running.apply(world.pipeline("New"))
    world.running.settle()
    world.send(60)
    world.running.settle()
    world.check("old")
    world.check("new")
    assert not world.running.driver.graph.replays, "it has joined the others"


@pytest.mark.parametrize("partitions", [1, 3])
def test_it_catches_up_while_more_comes_than_an_epoch_takes(partitions: int) -> None:
    world = World(partitions, bound=30)
    world.send(300)
    world.running.settle()
    world.running.apply(world.pipeline("New", "Windows"))
    epochs = 0
    while world.running.driver.graph.replays:
        world.send(8)  # what an epoch leaves for the others while somebody catches up
        assert world.running.epoch()
        epochs += 1
        assert epochs < 200, "it never catches up"
    behind = sum(map(len, world.log.parts.values())) - len(world.seen("old"))
    assert behind <= 60, "the others were held up for more than an epoch or two"
    world.send(50)
    world.running.settle()
    world.check("old")
    world.check("new")


def test_its_watermark_stands_where_it_reads_and_the_others_stay_where_they_are() -> None:
    world = World(bound=20)
    world.send(200)
    world.running.settle()
    before = world.running.driver.authority.lows["Old"]
    world.running.apply(world.pipeline("New"))
    world.running.epoch()
    lows = world.running.driver.authority.lows
    assert lows["Old"] == before
    assert lows["New"] == len(world.seen("new")), "the oldest that it has not read"
    world.running.settle()
    assert world.running.driver.authority.lows["New"] == before


def test_its_windows_are_those_of_a_run_that_had_it_from_the_beginning() -> None:
    wanted = World(bound=20)
    wanted.running = Changing(wanted.pipeline("Windows"), bound=20)
    late = World(bound=20)
    for world in (wanted, late):
        world.send(130)
        world.running.settle()
    late.running.apply(late.pipeline("Windows"))
    for world in (wanted, late):
        world.running.epoch()
        world.send(70)
        world.running.settle()
    found = [Counter((r.key, *r.value) for r in w.sinks["windows"].records) for w in (wanted, late)]
    assert found[0] == found[1]
    assert found[0].total() > 50


def test_it_goes_on_after_a_crash_where_it_was() -> None:
    world = World(2, bound=10)
    world.send(150)
    world.running.settle()
    world.running.apply(world.pipeline("New"))
    for _ in range(6):
        world.running.epoch()
        world.send(2)
        world.running.start(
            world.pipeline("New", replay=None)
        )  # the journal knows, whatever the code says now
        world.running.epoch()
    assert world.running.driver.graph.replays
    world.running.settle()
    world.check("old")
    world.check("new")


def test_taken_out_and_added_again_it_reads_what_it_missed() -> None:
    world = World(bound=10)
    world.send(100)
    world.running.settle()
    world.running.apply(world.pipeline("New"))
    world.running.epoch()
    world.running.apply(world.pipeline())
    world.send(20)
    world.running.settle()
    assert world.running.driver.sources.exhausted is False
    world.running.apply(world.pipeline("New"))
    world.running.settle()
    world.check("old")
    world.check("new")


def test_the_injector_is_told_of_what_all_have_read() -> None:
    world = World(bound=10)
    world.send(100)
    world.running.settle()
    world.log.commits.clear()
    world.running.apply(world.pipeline("New"))
    world.running.settle()
    assert {offsets["0"] for offsets in world.log.commits} == {100}, "never back to where one catches up"


def test_without_replay_it_starts_at_the_current_watermark_with_what_comes() -> None:
    world = World()
    world.send(50)
    world.running.settle()
    world.running.apply(world.pipeline("New", replay=None))
    assert world.running.driver.authority.inputs["New"] == 49
    world.send(10)
    world.running.settle()
    assert sorted(world.seen("new")) == list(range(50, 60))


def test_in_a_new_store_everything_is_from_the_beginning() -> None:
    world = World()
    world.running = Changing(world.pipeline("New"))
    world.send(30)
    world.running.settle()
    world.check("new")


def _chain(world: World, *, upper: Any, old_reader: bool = False) -> mw.Pipeline:
    p = world.pipeline()
    p.add(Tell("middle"), name="Upper", inputs={"in": mw.by_key}, outputs=["middle"], replay=upper)
    stream = "old" if old_reader else "middle"
    p.add(Idle(), name="Lower", inputs={stream: mw.by_key}, replay="earliest")
    return p


def test_behind_one_that_is_new_with_it_it_gets_all_that_one_makes() -> None:
    world = World(bound=20)
    world.send(90)
    world.running.settle()
    world.running.apply(_chain(world, upper="earliest"))
    world.running.settle()
    assert world.running.driver.tally.totals.value["records"]["Lower"] == 90


def test_what_cannot_be_brought_back_is_refused_with_the_reason() -> None:
    world = World()
    world.send(10)
    world.running.settle()
    with pytest.raises(mw.PipelineError, match="'Old', which writes it, exists already"):
        world.running.apply(_chain(world, upper="earliest", old_reader=True))
    with pytest.raises(mw.PipelineError, match="needs it of 'Upper' too"):
        world.running.apply(_chain(world, upper=None))
    with pytest.raises(mw.PipelineError, match="replay is"):
        world.pipeline("New", replay="latest")


class Forgetful(Log):
    """Drops what is committed."""

    def lost(self, offsets: Mapping[str, Offset]) -> str | None:
        return "it keeps nothing"


def test_an_injector_that_cannot_go_back_says_so_and_nothing_has_changed() -> None:
    world = World()
    world.log.__class__ = Forgetful
    world.send(10)
    world.running.settle()
    with pytest.raises(mw.PipelineError, match="with the injector of 'in': it keeps nothing"):
        world.running.apply(world.pipeline("New"))
    world.running.start(world.pipeline("New", replay=None))
    world.send(5)
    world.running.settle()
    assert sorted(world.seen("new")) == list(range(10, 15))


def test_of_an_injector_of_ones_own_that_is_told_of_commits_it_must_be_said_that_it_can() -> None:
    class Own(mw.Injector):
        def commit(self, offsets: Mapping[str, Offset]) -> None:
            """May delete."""

    assert "define lost()" in str(Own().lost({}))
    assert mw.Injector().lost({}) is None
    assert mw.injectors.Http(0).lost({}) == "its log is removed as it is committed"
    assert mw.injectors.Generator(lambda i: mw.Record(value=i, timestamp=i)).lost({"0": 5}) is None


def test_a_start_finds_the_files_that_are_replayed_under_their_new_names(tmp_path: Path) -> None:
    out = mw.sinks.Collect()

    def pipeline(*names: str) -> mw.Pipeline:
        p = mw.Pipeline("rotated")
        p.inject("in", mw.injectors.Files(tmp_path / "*", timestamp="time", unit="us", format="jsonl"))
        p.add(Idle(), inputs={"in": mw.by("k")})
        for name in names:
            p.add(Tell(name), inputs={"in": mw.by("k")}, outputs=[name], replay="earliest")
            p.sink(name, out)
        return p

    def write(name: str, first: int) -> None:
        (tmp_path / name).write_text("".join(f'{{"time": {first + n}, "k": "a"}}\n' for n in range(10)))

    write("log", 0)
    running = Changing(pipeline())
    running.settle()
    (tmp_path / "log").rename(tmp_path / "log.1")
    write("other", 10)
    running.start(pipeline("new"))
    running.settle()
    assert [record.timestamp for record in out.records] == list(range(20))
