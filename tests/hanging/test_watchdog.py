"""The watchdog over an epoch that takes long: what it names, and when it gives the epoch up."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import Any

import pytest

from millwheel.master.watchdog import SLOW, Notes, Watchdog
from millwheel.model.codec import unpack
from millwheel.worker.activity import Note
from millwheel.worker.envelope import Frame
from millwheel.worker.plan import Plan

_PLAN: Any = type("SomePlan", (), {"epoch": 7})()


class Stuck:
    """An executor whose workers are where they were."""

    job: int | None = None

    def __init__(self, *notes: Note) -> None:
        self.notes = notes
        self.cancelled = 0

    def execute(self, plan: Plan) -> list[Frame]:
        raise NotImplementedError

    def doing(self) -> list[Note]:
        return list(self.notes)

    def cancel(self) -> None:
        self.cancelled += 1

    def close(self) -> None:
        pass


class Watching:
    """A watchdog with a hand-driven clock, over an executor that has begun an epoch."""

    def __init__(self, executor: Stuck, asked: float | None = None) -> None:
        self.now = 0.0
        self.asked = asked
        self.journal: Notes = []
        self.dog = Watchdog(
            slow_after=30.0, write=self.journal.extend, asked=lambda: self.asked, clock=lambda: self.now
        )
        self.dog.begin(executor, _PLAN)

    def at(self, now: float) -> None:
        self.now = now
        self.dog.check()


def _note(seconds: float, key: str = "k") -> Note:
    now = time.time()
    return Note(os.getpid(), 7, "C", now - seconds, now, False, "C", key, "Record(…)", "process_record")


def test_a_hook_that_has_not_returned_for_long_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching(Stuck(_note(45.0)))
    with caplog.at_level(logging.WARNING, "millwheel"):
        for now in (29.0, 31.0, 32.0):
            watching.at(now)
    [line] = caplog.messages
    assert "process_record of computation 'C', key 'k'" in line
    [(place, data)] = watching.journal
    assert place == SLOW
    assert [note["key"] for note in unpack(data)] == ["k"]
    assert [note.key for note in watching.dog.slow] == ["k"]


def test_a_long_epoch_that_moves_is_not_slow(caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching(Stuck(_note(2.0)))
    with caplog.at_level(logging.WARNING, "millwheel"):
        watching.at(45.0)
    assert caplog.messages == []
    assert watching.journal == []


def test_a_worker_that_native_code_keeps_is_named_by_what_it_last_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    note = _note(31.0)
    watching = Watching(Stuck(replace(note, since=note.since - 1, at=note.since)))
    with caplog.at_level(logging.WARNING, "millwheel"):
        watching.at(45.0)
    [line] = caplog.messages
    assert "key 'k'" in line
    assert "when its process last answered" in line


def test_what_was_slow_is_not_any_more_when_the_epoch_is_over() -> None:
    watching = Watching(Stuck(_note(45.0)))
    watching.at(45.0)
    watching.dog.end()
    assert unpack(watching.journal[-1][1]) == []
    assert watching.dog.slow == []


def test_an_epoch_is_given_up_once_when_the_time_of_a_stop_is_over() -> None:
    executor = Stuck(_note(5.0))
    watching = Watching(executor)
    watching.at(4.0)
    watching.dog.stop_within(3.0)
    watching.at(6.9)
    assert executor.cancelled == 0
    watching.at(7.0)
    watching.at(8.0)
    assert executor.cancelled == 1


def test_a_second_stop_with_less_time_counts() -> None:
    executor = Stuck()
    watching = Watching(executor)
    watching.dog.stop_within(30.0)
    watching.dog.stop_within(0.0)
    watching.at(1.0)
    assert executor.cancelled == 1


def test_a_stop_from_another_process_is_noticed_while_the_epoch_runs() -> None:
    executor = Stuck()
    watching = Watching(executor)
    watching.at(10.0)
    watching.asked = 5.0
    watching.at(11.0)
    watching.at(15.9)
    assert executor.cancelled == 0
    watching.at(16.0)
    assert executor.cancelled == 1
