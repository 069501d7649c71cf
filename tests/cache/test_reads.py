"""What an executor has seen is not read again, as long as nobody else has written it."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.errors import StoreError
from millwheel.store.memory import MemoryShard
from millwheel.worker.cache import Cache
from tests.cache.running import Profile, Running, Windows, cache_of, shelves

KEYS = [f"key {number}" for number in range(50)]


def _records(time: int, value: int = 1) -> list[tuple[str, int, int]]:
    return [(key, value, time) for key in KEYS]


def test_rows_that_a_worker_wrote_are_not_read_again() -> None:
    running = Running(Profile(), [shelves()[0]])
    running.epoch(*_records(1), watermark=0)
    for epoch in range(2, 5):
        asked = running.epoch(*_records(epoch), watermark=epoch)
        assert asked["R"] == asked["C"] == asked["B"] == asked["T"] == 0
    report = running.report()
    assert report.rows_read["C"] == 0
    assert report.rows_cached["C"] == 4 * len(KEYS)


def test_keys_that_never_were_are_not_asked_for_where_every_row_is_here() -> None:
    running = Running(Profile(), [shelves()[0]])
    running.epoch(*_records(1), watermark=0)
    assert running.epoch(("a new one", 1, 2), watermark=0)["R"] == 0
    assert running.epoch(("a new one", 5, 3), watermark=0)["R"] == 0
    assert [record.value for record in running.sink.records if record.key == "a new one"] == [0, 4]


def test_timers_fire_from_the_cache() -> None:
    running = Running(Windows(), [shelves()[0]])
    running.epoch(*_records(1), *_records(101), watermark=0)
    for watermark in (50, 100, 150, 200):
        asked = running.epoch(watermark=watermark)
        assert asked["R"] == asked["T"] == 0
    assert sum(len(record.value) for record in running.sink.records) == 2 * len(KEYS)
    assert asked["C"] == 0


def test_a_worker_that_comes_later_reads_once_and_then_no_more() -> None:
    first, second = cache_of(10**7)[0], cache_of(10**7)[0]
    running = Running(Windows(), [first])
    running.epoch(*_records(1), watermark=0)
    running.epoch(*_records(2), watermark=0)
    running.workers[0].cache = second
    assert running.epoch(*_records(3), watermark=0)["R"] == len(KEYS)
    assert running.epoch(*_records(4), watermark=0)["R"] == 0


@pytest.mark.parametrize("caches", ["none", "own", "shared", "one without"])
def test_workers_that_take_turns_see_what_the_other_wrote(caches: str) -> None:
    one, other = shelves()[0], shelves()[0]
    kinds = {"none": [None, None], "own": [one, other], "shared": [one, one], "one without": [one, None]}
    running = Running(Windows(), kinds[caches])
    for time in range(0, 400, 20):
        running.epoch(*_records(time, time), watermark=time - 30)
    running.epoch(watermark=1000)
    found = sorted((record.key, record.timestamp, record.value) for record in running.sink.records)
    expected = [(key, end, list(range(end - 100, end, 20))) for key in KEYS for end in (100, 200, 300, 400)]
    assert found == sorted(expected)


def test_what_is_kept_stays_within_its_room() -> None:
    room = 20_000
    cache, shelf = cache_of(room)
    running = Running(Profile(), [cache])
    for epoch in range(30):
        running.epoch(*[(f"{epoch} {key}", 1, epoch) for key in KEYS], watermark=0)
        assert _size(shelf) <= room
    assert running.report().rows_read["C"] > 0
    assert _size(shelf) > room / 4


def _size(shelf: MemoryShard) -> int:
    return shelf.size()


def test_a_state_that_a_hook_holds_on_to_is_not_seen_by_the_next_epoch() -> None:
    class Holds(Windows):
        held: list[object] = []  # noqa: RUF012 - what a careless hook leaves behind

        def process_record(self, record: object) -> None:
            super().process_record(record)  # type: ignore[arg-type]
            for state in self.held:
                state.clear()  # type: ignore[attr-defined]
            self.held.append(self.state[100])

    running = Running(Holds(), [shelves()[0]])
    for time in range(3):
        running.epoch(("k", time, time), watermark=0)
    running.epoch(watermark=100)
    assert [record.value for record in running.sink.records] == [[0, 1, 2]]


class _Broken(MemoryShard):
    """Takes nothing: its disk is full."""

    def write(self, *rest: object, **options: object) -> None:
        raise StoreError("no room")


def _refused(shard: int) -> MemoryShard:
    raise StoreError("no folder")


@pytest.mark.parametrize("shelf", [lambda shard: _Broken([]), _refused], ids=["full", "not to be had"])
def test_a_cache_that_cannot_be_used_is_done_without(shelf: Any) -> None:
    running = Running(Profile(), [Cache(shelf, 10**6)])
    for epoch in range(3):
        assert running.epoch(*_records(epoch), watermark=0)["R"] in (0, len(KEYS))
    assert len(running.sink.records) == 3 * len(KEYS)
