"""After a run that bad input has stopped, the next run goes on: with fixed input, or with ``divert``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.input.reading import append, write
from tests.store.driving import run

GOOD = '{"t": 1}\n'
BEHIND = '{"t": 2}\n{"t": 3}\n'


class Runs:
    """Runs over one file and one store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = MemoryStore()

    def run(self, **options: Any) -> list[Any]:
        p = mw.Pipeline("fixed")
        p.inject("in", mw.injectors.Files(self.path, timestamp="t", **options))
        p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
        sink = mw.sinks.Collect()
        p.sink("out", sink)
        run(p, self.store)
        return [record.value for record in sink.records]


@pytest.fixture
def stopped(tmp_path: Path) -> Runs:
    """A run that a bad line has stopped."""
    runs = Runs(write(tmp_path / "a.jsonl", GOOD + "oops\n" + BEHIND))
    with pytest.raises(mw.InputError, match="fix the input"):
        runs.run()
    return runs


def test_the_same_bad_input_stops_the_next_run_too(stopped: Runs) -> None:
    with pytest.raises(mw.InputError, match="the line is not JSON"):
        stopped.run()


def test_a_line_that_is_fixed_in_place_is_read(stopped: Runs) -> None:
    write(stopped.path, GOOD + "    \n" + BEHIND)
    assert stopped.run() == [{"t": 1}, {"t": 2}, {"t": 3}]


def test_a_line_that_became_longer_is_read_with_all_behind_it(stopped: Runs) -> None:
    write(stopped.path, GOOD + '{"t": 7, "fixed": "with a longer line"}\n' + BEHIND)
    assert stopped.run() == [{"t": 1}, {"t": 7, "fixed": "with a longer line"}, {"t": 2}, {"t": 3}]


def test_a_line_that_was_taken_out_is_not_missed(stopped: Runs) -> None:
    write(stopped.path, GOOD + BEHIND)
    assert stopped.run() == [{"t": 1}, {"t": 2}, {"t": 3}]
    append(stopped.path, '{"t": 4}\n')
    assert stopped.run() == [{"t": 4}]


def test_with_divert_the_next_run_goes_on_without_the_bad_line(stopped: Runs) -> None:
    assert stopped.run(errors="divert") == [{"t": 1}, {"t": 2}, {"t": 3}]


def test_a_last_line_that_was_half_there_is_read_when_it_is_whole(tmp_path: Path) -> None:
    runs = Runs(write(tmp_path / "a.jsonl", '{"t": 1}\n{"t": 2, "v"'))
    with pytest.raises(mw.InputError, match="the line is not JSON"):
        runs.run()
    append(runs.path, ': "whole"}\n')
    assert runs.run() == [{"t": 1}, {"t": 2, "v": "whole"}]


def test_what_was_read_before_the_bad_line_came_is_not_read_again(tmp_path: Path) -> None:
    runs = Runs(write(tmp_path / "a.jsonl", GOOD))
    assert runs.run() == [{"t": 1}]
    append(runs.path, "oops\n")
    with pytest.raises(mw.InputError):
        runs.run()
    write(runs.path, GOOD + BEHIND)
    assert runs.run() == [{"t": 2}, {"t": 3}]


def test_a_file_that_shrank_between_two_runs_is_an_error(tmp_path: Path) -> None:
    runs = Runs(write(tmp_path / "a.jsonl", GOOD + BEHIND))
    assert len(runs.run()) == 3
    write(runs.path, '{"t": 9}\n')
    with pytest.raises(mw.InputError, match=r"a\.jsonl"):
        runs.run()


def test_a_record_that_a_user_fixes_in_a_list_is_read(tmp_path: Path) -> None:
    store = MemoryStore()

    def once(records: list[Any]) -> list[Any]:
        p = mw.Pipeline("fixed")
        p.inject("in", mw.injectors.Records(records))
        p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
        sink = mw.sinks.Collect()
        p.sink("out", sink)
        run(p, store)
        return [record.value for record in sink.records]

    with pytest.raises(mw.InputError):
        once([mw.Record(value=1, timestamp=1), "oops", mw.Record(value=2, timestamp=2)])
    assert once([mw.Record(value=i, timestamp=i) for i in (1, 7, 2)]) == [1, 7, 2]
