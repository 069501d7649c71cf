"""What a worker notes of what it is doing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.model.graph import build
from millwheel.worker import activity
from millwheel.worker.activity import Activity, read_notes
from millwheel.worker.context import HookContext
from tests.computations import Hooks
from tests.spark.waiting import eventually


def _context(on_record: object) -> HookContext:
    p = mw.Pipeline("one")
    p.inject("in", mw.injectors.Records([]))
    p.add(Hooks(on_record), name="C", inputs={"in": mw.by_key})  # type: ignore[arg-type]
    context = HookContext(build(p).nodes["C"])
    context.key = "k"
    return context


def test_a_careful_task_notes_each_hook_before_it_is_called(tmp_path: Path) -> None:
    seen = []
    context = _context(lambda c, record: seen.append(read_notes(tmp_path)))
    doing = Activity()
    with doing.task(7, os.fspath(tmp_path), careful=True):
        doing.enter(lambda: "C", context)
        context.computation.process_record(mw.Record(value=1, timestamp=2))
    [[note]] = seen
    assert (note.process, note.epoch, note.computation, note.key) == (os.getpid(), 7, "C", "k")
    assert note.hook == "process_record"
    assert note.alive
    assert read_notes(tmp_path) == []


def test_another_task_of_the_same_worker_notes_nothing(tmp_path: Path) -> None:
    seen = []
    context = _context(lambda c, record: seen.append(read_notes(tmp_path)))
    doing = Activity()
    for careful in (True, False):
        with doing.task(7, os.fspath(tmp_path), careful=careful):
            doing.enter(lambda: "C", context)
            context.computation.process_record(mw.Record(value=1, timestamp=2))
    assert [len(notes) for notes in seen] == [1, 0]


def test_a_worker_notes_what_it_has_in_hand_until_it_has_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "EVERY", 0.01)
    context = _context(None)
    doing = Activity()
    with doing.task(7, os.fspath(tmp_path), careful=False):
        doing.enter(lambda: "C", context)
        context.hand = mw.Record(value=1, timestamp=2)
        eventually(lambda: [note.key for note in read_notes(tmp_path)] == ["k"])
        since = read_notes(tmp_path)[0].since
        context.hand = mw.Record(value=2, timestamp=3)
        eventually(lambda: any(note.since > since for note in read_notes(tmp_path)))
        context.hand = None
        doing.enter(lambda: "the sink")
        eventually(lambda: [note.what for note in read_notes(tmp_path)] == ["the sink"])
    eventually(lambda: read_notes(tmp_path) == [])


def test_a_note_that_is_half_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"process": 1, "ep')
    assert read_notes(tmp_path) == []
