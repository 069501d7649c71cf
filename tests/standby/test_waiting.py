"""When a standby takes over, and from whom: with a clock that is handed in, and a lock that is looked up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.errors import EngineGone, StandbyEnded
from millwheel.job import Job
from millwheel.master.driver import Driver
from millwheel.master.ending import Ending
from millwheel.master.journal import Journal
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.master.standby import Heartbeat, Standby, read_standbys
from millwheel.model.graph import Graph, build
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker
from tests.spark.waiting import eventually


def _graph() -> Graph:
    p = mw.Pipeline("led")
    p.inject("in", mw.injectors.Records([mw.Record(value=1, timestamp=1)]))
    return build(p)


class _Store(MemoryStore):
    """A store of which a test says whether somebody has it."""

    led: bool | None = True

    def in_use(self) -> bool | None:
        return self.led


class _World:
    """A leader, standbys, and the time that passes while a standby rests."""

    def __init__(self) -> None:
        self.store = _Store()
        self.journal = Journal(self.store)
        self.journal.acquire(_graph(), "the leader")
        self.now = 1_000.0
        self.heartbeat = Heartbeat(self.store, self.journal.note, clock=lambda: self.now)
        self.beats = True
        self.happens: dict[int, Callable[[], None]] = {}
        self.rests = 0

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.rests += 1
        if self.beats and self.rests % 5 == 0:
            self.heartbeat.beat()
        self.happens.get(self.rests, lambda: None)()
        assert self.rests < 2_000, "the standby waits for ever"

    def standby(self, name: str = "the standby") -> Standby:
        return Standby(
            self.store,
            name,
            2.0,
            clock=lambda: self.now,
            wall=lambda: int(self.now * 1e6),
            pause=self.pause,
        )

    def shown(self) -> list[str]:
        with self.store.journal.snapshot() as snapshot:
            return [one.owner for one in read_standbys(snapshot, int(self.now * 1e6))]


def test_one_that_could_not_lead_ends_while_another_leads() -> None:
    world = _World()

    def unable() -> None:
        if world.rests > 20:
            raise EngineGone("Spark's JVM has ended")

    standby = Standby(
        world.store, "the standby", able=unable, clock=lambda: world.now, pause=world.pause, wall=lambda: 0
    )
    with pytest.raises(EngineGone):
        standby.wait()
    assert world.shown() == []


def test_where_nobody_leads_it_does_not_wait() -> None:
    world = _World()
    world.store.led = False
    assert world.standby().wait() is False
    assert world.rests == 0


def test_a_leader_that_lost_the_lock_is_followed_at_once() -> None:
    world = _World()
    world.happens[100] = lambda: setattr(world.store, "led", False)
    assert world.standby().wait() is False
    assert world.rests == 100


def test_a_leader_that_shows_no_sign_for_some_time_is_taken_over() -> None:
    world = _World()
    world.happens[100] = lambda: setattr(world, "beats", False)
    assert world.standby().wait() is True
    assert 100 + 20 <= world.rests <= 100 + 26


def test_a_leader_that_has_not_begun_to_beat_gets_longer() -> None:
    world = _World()
    world.beats = False
    assert world.standby().wait() is True
    assert world.rests >= 300


def test_a_leader_that_changes_its_intervals_is_alive() -> None:
    world = _World()
    for at in range(50, 200, 10):
        world.happens[at] = lambda: world.journal.renew({}) and None
    world.happens[200] = lambda: setattr(world.store, "led", False)
    assert world.standby().wait() is False


def test_it_is_shown_while_it_waits_and_not_after() -> None:
    world = _World()
    shown: list[list[str]] = []
    world.happens[50] = lambda: shown.append(world.shown())
    world.happens[60] = lambda: setattr(world.store, "led", False)
    world.standby().wait()
    assert shown == [["the standby"]]
    assert world.shown() == []


def test_one_that_was_killed_is_taken_off_the_list_and_nobody_beats_for_it() -> None:
    world = _World()

    def die() -> None:
        raise KeyboardInterrupt

    standby = world.standby()
    world.happens[20] = die
    write = world.store.journal.write
    world.store.journal.write = lambda puts, *rest, **more: write(puts, *rest, **more) if puts else None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        standby.wait()
    world.store.journal.write = write  # type: ignore[method-assign]
    assert world.shown() == ["the standby"]
    for _ in range(3):
        world.heartbeat.beat()
        world.now += 11
    assert world.shown() == []
    with world.store.journal.snapshot() as snapshot:
        before = snapshot.get(b"beat")
    world.heartbeat.beat()
    with world.store.journal.snapshot() as snapshot:
        assert snapshot.get(b"beat") == before


def test_of_two_standbys_of_a_leader_that_hangs_one_takes_over_and_the_other_waits_for_it() -> None:
    store = _Store()
    journal = Journal(store)
    journal.acquire(_graph(), "the leader")
    heartbeat = Heartbeat(store, journal.note)
    order: list[tuple[str, bool]] = []

    def live(name: str) -> None:
        taken = Standby(store, name, 0.3).wait()
        if taken:
            Journal(store).acquire(_graph(), name)
        order.append((name, taken))

    threads = [threading.Thread(target=live, args=[name], daemon=True) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    eventually(lambda: len(_shown(store)) == 2)
    heartbeat.beat()  # a single time
    eventually(lambda: len(order) == 1)
    eventually(lambda: len(_shown(store)) == 1)
    assert order[0][1]
    assert journal.owner() == order[0][0]
    store.led = False  # the new leader is killed
    eventually(lambda: len(order) == 2)
    assert not order[1][1]


def _shown(store: MemoryStore) -> list[str]:
    with store.journal.snapshot() as snapshot:
        return [one.owner for one in read_standbys(snapshot, time.time_ns() // 1000)]


def test_the_former_leader_is_refused_whatever_it_writes() -> None:
    world = _World()
    world.happens[100] = lambda: setattr(world, "beats", False)
    world.standby().wait()
    Journal(world.store).acquire(_graph(), "the standby")
    with pytest.raises(mw.FencedError, match="taken over by the standby"):
        world.journal.note([(b"x", b"y")])


def _job(store: MemoryStore, *, follow: bool) -> Job:
    p = mw.Pipeline("led")
    p.inject("in", mw.injectors.Records([mw.Record(value=1, timestamp=1)]))
    graph = build(p)
    driver = Driver(
        graph,
        store,
        Options(slots=1),
        clock=lambda: time.time_ns() // 1000,
        owner="a test",
        ending=Ending.NEVER if follow else Ending.CLOSE,
    )
    executor = LocalExecutor(Worker(graph, driver.numbers, store))
    return Job(driver, executor, until_exhausted=not follow, on_close=lambda: None)


class _Outside(_Store):
    """A store that outlives the process that leads."""

    def close(self) -> None:
        pass


def _behind(store: _Store, led: Callable[[], None]) -> Standby:
    """A standby in whose first pause another process leads, and ends."""
    rested: list[float] = []

    def pause(seconds: float) -> None:
        if not rested:
            led()
            store.led = False
        rested.append(seconds)

    return Standby(store, "the standby", pause=pause)


def test_a_standby_ends_with_a_pipeline_that_has_ended() -> None:
    store = _Outside()
    job = _job(store, follow=False)

    def led() -> None:
        job.start()
        job.wait()

    with pytest.raises(StandbyEnded):
        _behind(store, led).wait()


def test_a_standby_goes_on_for_a_pipeline_whose_process_was_stopped() -> None:
    store = _Outside()
    job = _job(store, follow=True)

    def led() -> None:
        job.start()
        job.stop()
        job.wait()

    assert _behind(store, led).wait() is False


@pytest.mark.parametrize("given", [0, 0.5, True, "2"])
def test_a_time_that_is_too_short_is_refused(given: Any) -> None:
    from millwheel.master.standby import check_takeover_after

    with pytest.raises(mw.PipelineError, match="takeover_after is a number of seconds"):
        check_takeover_after(given)
