"""A restart with other slots, or after a crash in an epoch, moves no watermark past what it stood behind."""

from __future__ import annotations

from tests.watermarks.held_layout import BACK, BACK_TOO, FRONT, Running


def test_a_hold_keeps_timers_of_chained_consumers_after_its_interval_was_split() -> None:
    running = Running(slots=1)
    running.send(BACK, "hold", 5)
    running.send(FRONT, "timer", 20)
    running.settle()
    running.injector.watermark = 50
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    running.start(slots=3)
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    assert running.seen == [[FRONT, "timer", False]]


def test_a_hold_keeps_timers_of_chained_consumers_after_its_interval_was_merged() -> None:
    running = Running(slots=2)
    running.send(BACK, "timer", 20)
    running.settle()
    running.send(BACK, "hold", 5)
    running.injector.watermark = 50
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    running.start(slots=1)
    running.settle()
    assert running.driver.authority.lows == {"Up": 5, "Down": 5}
    assert running.seen == [[BACK, "timer", False]]


def test_a_window_that_one_epoch_left_to_the_next_is_not_late_after_intervals_were_merged() -> None:
    running = Running(slots=2, due_limit=1)
    running.send(BACK, "window", 10)
    running.send(BACK_TOO, "window", 10)
    running.settle()
    running.injector.watermark = 50
    running.epoch()
    assert len(running.seen) == 1
    running.start(slots=1)
    running.settle()
    assert sorted(running.seen) == sorted([[BACK, "closed", False], [BACK_TOO, "closed", False]])


def test_a_second_key_s_hold_holds_chained_consumers_though_their_interval_was_ahead() -> None:
    """It was ahead because the first hold came in the epoch in which the watermark moved."""
    running = Running(slots=2)
    running.send(BACK, "hold", 10)
    running.injector.watermark = 50
    running.settle()
    running.send(FRONT, "hold", 20)
    running.send(BACK, "release")
    running.settle()
    assert running.driver.authority.lows == {"Up": 20, "Down": 20}
    running.send(FRONT, "release")
    running.settle()
    assert running.seen == [[BACK, "released", False], [FRONT, "released", False]]


def test_the_wall_time_does_not_go_back_behind_an_epoch_that_was_run_again() -> None:
    running = Running(slots=1)
    running.wall = 100
    running.send(FRONT, "timer", 20)
    plan = running.driver.next_plan()
    assert plan is not None
    running.driver.journal.plan(plan, running.graph)  # and then the driver dies
    running.wall = 50
    running.start(slots=1)
    running.settle()
    assert running.driver.now() == 100
    running.start(slots=1)
    assert running.driver.now() == 100
