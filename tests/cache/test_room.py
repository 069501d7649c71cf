"""What will be needed last goes first, not what was used least recently (8.3)."""

from __future__ import annotations

import millwheel as mw
from tests.cache.running import Profile, Running, Windows, cache_of


def test_the_rows_of_windows_that_close_soon_stay() -> None:
    """The paper's case: rows are written, and not needed until the watermark passes their window's end.

    The last written ones are those of the windows that close last, so a cache that lets go of what was
    used least recently would have none of the rows that it is asked for.
    """
    cache, _ = cache_of(60_000)
    running = Running(Windows(), [cache])
    per_window, windows = 20, 40
    for window in range(windows):
        time = window * 100
        running.epoch(*[(f"{window} {n}", "x" * 100, time) for n in range(per_window)], watermark=0)
    before = running.report()
    assert before.rows_cached["C"] + before.rows_read["C"] == per_window * windows
    for window in range(5):
        running.epoch(watermark=(window + 1) * 100)
    after = running.report()
    assert after.rows_cached["C"] - before.rows_cached["C"] == 5 * per_window, "soon: all of them are here"
    running.epoch(watermark=windows * 100)
    assert running.report().rows_read["C"] > after.rows_read["C"], "late: most of them are not"


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
