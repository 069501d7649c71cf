"""The rows that were used least recently are evicted first, and the timer index after them (8.3)."""

from __future__ import annotations

import millwheel as mw
from tests.cache.running import Profile, Running, Windows, cache_of


class Counts(mw.Computation):
    """Counts a key's records: each one writes the row."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1


def test_the_rows_that_were_used_least_recently_go_first() -> None:
    cache, _ = cache_of(40_000)
    running = Running(Counts(), [cache])
    per_epoch, epochs = 10, 25

    def read(epoch: int, others: int = 0) -> int:
        before = running.report().rows_read["C"]
        keys = [*(f"{epoch} {n}" for n in range(per_epoch)), *(f"other {n}" for n in range(others))]
        running.epoch(*[(key, 1, epoch) for key in keys], watermark=0)
        return running.report().rows_read["C"] - before

    assert [read(epoch) for epoch in range(epochs)] == [0] * epochs, "all rows are here, and known to be"
    assert read(0, others=220) == 0, "more than there is room for"
    assert read(0) == 0, "used in the last epochs"
    assert read(1) == per_epoch, "used longest ago"


def test_timers_are_found_without_the_store_after_their_rows_have_gone() -> None:
    cache, _ = cache_of(60_000)
    running = Running(Windows(), [cache])
    per_window, windows = 20, 12
    for window in range(windows):
        time = window * 100
        running.epoch(*[(f"{window} {n}", "x" * 400, time) for n in range(per_window)], watermark=0)
    asked = running.epoch(watermark=100)
    assert asked["T"] == 0
    assert asked["R"] == per_window, "the rows of the first window were used longest ago"


class Daily(mw.Computation):
    """Counts until a time that is far away."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer("end of day", 10**9)

    def process_timer(self, timer: mw.Timer) -> None:
        """There is nothing to do."""


def test_a_row_that_is_used_in_every_epoch_stays_though_its_timer_is_far_away() -> None:
    cache, _ = cache_of(20_000)
    running = Running(Daily(), [cache])
    hot = [f"hot {n}" for n in range(10)]
    for epoch in range(40):
        cold = [f"cold {epoch} {n}" for n in range(30)]
        asked = running.epoch(*[(key, 1, epoch) for key in (*hot, *cold)], watermark=epoch)
    assert asked["R"] == len(cold), "the store is asked for the new ones only"


def test_rows_that_are_only_read_are_ranked_by_how_often() -> None:
    cache, _ = cache_of(20_000)
    running = Running(Profile(), [cache])
    hot = [f"hot {n}" for n in range(10)]
    asked = running.epoch(*[(key, 1, 0) for key in hot], watermark=0)
    for epoch in range(1, 60):
        cold = [f"cold {epoch} {n}" for n in range(30)]
        asked = running.epoch(*[(key, 1, epoch) for key in (*hot, *cold)], watermark=0)
    assert asked["R"] == len(cold)
