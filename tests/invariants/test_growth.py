"""Invariant 9: state, IDs, timers, checkpoints and journal do not grow without bound in a steady pipeline."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.store.keyspace import counters_key
from millwheel.store.tools.check import check
from tests.computations import Hooks, hooks


def entries(h: mw.testing.Harness) -> int:
    """What the store holds in all its shards, but for the counters that each tablet has."""
    counters = counters_key(0, 0)[:1]
    found = [key for shard in h.store.all_shards for key, _ in shard.scan(b"", b"\xff")]
    return sum(not key.startswith(counters) for key in found)


def obey(c: Hooks, record: mw.Record) -> None:
    if record.value == "hold":
        c.hold(record.timestamp)
    elif record.value == "release":
        c.release()
    elif record.value == "wall":
        c.set_timer("t", record.timestamp, mw.WALL)
    elif record.value == "both":
        c.hold(record.timestamp, "h")
        c.set_timer("t", record.timestamp, mw.WALL)
    elif record.value == "clear":
        c.clear_timer("t")
    elif record.value == "forget":
        c.state["n"] = 1
        c.clear_timer("t")
        del c.state


@pytest.mark.parametrize(
    "ways",
    [
        ["hold", "release"],
        ["wall", "clear"],
        ["both", "release", "forget"],
        ["hold", "wall", "forget"],
        ["wall"],
    ],
    ids="-".join,
)
@pytest.mark.parametrize("slots", [1, 2])
def test_a_key_that_had_a_hold_or_a_wall_timer_and_has_nothing_leaves_no_row(
    ways: list[str], slots: int
) -> None:
    h = mw.testing.Harness(hooks(obey, lambda c, timer: None), slots=slots)
    h.advance_wall(1)
    h.send("in", "go", timestamp=5, key="first")
    for round in range(2):
        before = entries(h) if round else 0
        for n in range(30):
            for what in ways:
                h.send("in", what, timestamp=10, key=f"{round} {n}")
        h.advance_wall(20 + round)
        assert not before or entries(h) == before
        h.crash()
    for n in range(30):
        assert h.row("C", f"0 {n}") is None
    assert not check(h.store).problems


@pytest.mark.parametrize("streams", [1, 6, 20])
def test_ids_of_many_injected_streams_are_forgotten_as_fast_as_they_come(streams: int) -> None:
    p = mw.Pipeline("many streams")
    names = [f"s{n}" for n in range(streams)]
    for name in names:
        injector = mw.injectors.Records([])
        injector.id_retention = 10
        p.inject(name, injector)
    p.add(Hooks(), inputs=dict.fromkeys(names, mw.by_key))
    h = mw.testing.Harness(p)
    sizes = []
    for round in range(60):
        with h.epoch():
            h.advance_wall(round)
            for name in names:
                h.send(name, 1, timestamp=1, key="k", id=round)
        sizes.append(entries(h))
    assert max(sizes[40:]) <= max(sizes[:20])
