"""Every tool runs in a loop beside a pipeline that is made, run, killed, compacted, copied and rescaled.

Whatever they meet, they end with an answer or a message; and the output of the pipeline is exact.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millwheel.errors import StoreError
from millwheel.job import Job
from millwheel.master.driver import Driver
from millwheel.master.ending import Ending, Start
from millwheel.master.executor import Executor
from millwheel.model.graph import Graph
from millwheel.store.open import open_store
from millwheel.watch.history import Recorder
from tests.spark.waiting import eventually
from tests.store.driving import lead, run, take
from tests.store.tools_in_use import IN_USE, Found, call, is_refused, tools, view_page
from tests.store.tools_pipeline import OUTPUT, allow, pipeline, wall, written

pytestmark = pytest.mark.timeout(300)

_fork = multiprocessing.get_context("fork")
_FACTORY = "tests.store.tools_pipeline:pipeline"
_LARGER = "tests.store.tools_pipeline:larger"
_ROUNDS = 7
_LOOKS = ("status", "top", "explain", "inspect", "apply --dry-run", "store check", "ui", "page")


def _drive(path: str, shards: int, output: str, to_the_end: bool) -> None:
    """Makes the store or opens it, and runs the pipeline on it until it is stopped, or to its end."""
    ending = Ending.CLOSE if to_the_end else Ending.NEVER
    for _ in range(1000):  # a tool may have the store for a moment
        store = open_store(path, shards=shards)
        try:
            driver, executor = take(
                pipeline(output),
                store,
                slots=shards,
                clock=wall,
                ending=ending,
                owner="the pipeline",
            )
            break
        except StoreError as error:
            store.close()
            if "is in use by" not in str(error):
                raise
            time.sleep(0.02)
    driver.observer = Recorder(driver, spark=None)

    def rebuild(graph: Graph) -> tuple[Driver, Executor]:
        return lead(graph, store, "the pipeline", shards, wall, Start.CHANGE, ending)

    job = Job(driver, executor, until_exhausted=to_the_end, on_close=lambda: None, rebuild=rebuild)
    job.start()
    job.wait()


def _use_tools(where: Path, scratch: Path, stop: Any, reports: Any) -> None:
    found = Found()
    for turn in itertools.count(os.getpid()):
        path = where.read_text()
        for tool in tools(path, _FACTORY, scratch, turn):
            found.note(tool, *call(list(tool.arguments)), path)
        if stop.is_set():
            reports.put(found)
            return


def _view_pages(where: Path, stop: Any, reports: Any) -> None:
    found = Found()
    while True:
        view_page(where.read_text(), found)
        if stop.is_set():
            reports.put(found)
            return


def _done(arguments: list[str]) -> str:
    """What a command says that nothing can be in the way of."""
    status, text = call(arguments)
    assert status == 0, text
    return text


def _done_when_free(arguments: list[str], path: str) -> None:
    """Calls a command until no other one has the store for itself."""

    def done() -> bool:
        status, text = call(arguments)
        assert status == 0 or is_refused(text, IN_USE, path), text
        return status == 0

    eventually(done, 60)


def _wait_for_output(folder: Path, files: int) -> None:
    eventually(lambda: len(list(folder.glob("*.json"))) > files, 100)


def _change(path: str) -> None:
    """A computation is added while the pipeline runs, removed, and forgotten."""
    _done(["apply", _LARGER, "--store", path])
    _done(["apply", _FACTORY, "--store", path])
    _done(["store", "forget", "Seen", "--store", path])


def test_the_output_is_exact_whatever_tools_run_beside_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, expected, where = tmp_path / "out", tmp_path / "expected", tmp_path / "where"
    for folder in (output, expected, tmp_path / "scratch"):
        folder.mkdir()
    monkeypatch.setenv(OUTPUT, str(output))
    run(pipeline(str(expected)), open_store("memory:"))
    path = str(tmp_path / "store-0")
    where.write_text(path)
    stop, reports = _fork.Event(), _fork.Queue()
    users = [
        *(_fork.Process(target=_use_tools, args=(where, tmp_path / "scratch", stop, reports)) for _ in "12"),
        _fork.Process(target=_view_pages, args=(where, stop, reports)),
    ]
    for user in users:
        user.start()
    try:
        for turn in range(_ROUNDS):
            last = turn == _ROUNDS - 1
            before = len(list(output.glob("*.json")))
            allow(output, (turn + 1) / _ROUNDS)
            driver = _fork.Process(target=_drive, args=(path, 2, str(output), last))
            driver.start()
            if last:
                driver.join(200)
                assert driver.exitcode == 0
                break
            _wait_for_output(output, before + 1)
            if turn in (2, 3):
                _change(path)
            if turn % 2:
                _done(["stop", *(["--drain"] if turn % 4 == 3 else []), "--store", path])
                driver.join(60)
                assert driver.exitcode == 0
            else:
                assert driver.pid is not None
                os.kill(driver.pid, signal.SIGKILL)
                driver.join(60)
            if turn % 3 == 1:
                target = str(tmp_path / f"store-{turn + 1}")
                _done_when_free(["store", "copy", path, target], path)
                path = target
                where.write_text(path)
            _done_when_free(["store", "compact", path], path)
    finally:
        stop.set()
        found: list[Found] = [reports.get(timeout=100) for _ in users]
        for user in users:
            user.join(30)
    wrong = [text for report in found for text in report.wrong]
    assert not wrong, "\n".join(wrong[:10])
    statuses: dict[str, Counter[int]] = {}
    for report in found:
        for name, counts in report.statuses.items():
            statuses.setdefault(name, Counter()).update(counts)
    for name in _LOOKS:
        assert statuses[name][130 if name == "ui" else 0], statuses
    assert written(output) == written(expected)
    assert "nothing is wrong" in _done(["store", "check", path])
