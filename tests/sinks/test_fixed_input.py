"""A run that bad input has stopped leaves nothing in a sink that the next run would deliver again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.master.driver import Driver
from millwheel.master.local_executor import LocalExecutor
from millwheel.master.options import Options
from millwheel.model.graph import build
from millwheel.store.memory import MemoryStore
from millwheel.worker.step import Worker
from tests.store.driving import run_to_the_end


def _run(folder: Path, store: MemoryStore, slots: int) -> None:
    p = mw.Pipeline("fixed")
    p.inject("in", mw.injectors.Files(folder / "a.jsonl", timestamp="t"))
    p.sink("in", mw.sinks.JsonLines(folder / "out"))
    graph = build(p)
    driver = Driver(graph, store, Options(slots=slots, compact_below=1), clock=lambda: 0, owner="a test")
    try:
        run_to_the_end(driver, LocalExecutor(Worker(graph, driver.numbers, store)))
    finally:
        driver.close()


@pytest.mark.parametrize(("before", "behind"), [(4, 4), (4, 1), (1, 4), (4, 3)])
def test_every_line_is_delivered_once_whatever_the_number_of_tasks(
    tmp_path: Path, before: int, behind: int
) -> None:
    lines = [json.dumps({"t": i}) for i in range(1_000)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "oops"]) + "\n")
    store = MemoryStore(4)
    with pytest.raises(mw.InputError):
        _run(tmp_path, store, before)
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    _run(tmp_path, store, behind)
    found = sorted(record.value["t"] for record in mw.sinks.JsonLines(tmp_path / "out").records())
    assert found == list(range(1_000))
