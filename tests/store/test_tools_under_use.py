"""Every tool runs in a loop beside a pipeline that is made, run, killed, compacted, copied and rescaled.

Whatever they meet, they end with an answer or a message; and the output of the pipeline is exact.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millwheel.cli import main
from millwheel.errors import StoreError
from millwheel.job import Job
from millwheel.master.ending import Ending
from millwheel.store.open import open_store, open_to_read
from millwheel.watch.history import Recorder
from millwheel.watch.server import Server
from tests.spark.waiting import eventually
from tests.store.driving import run, take
from tests.store.tools_pipeline import pipeline, wall, written

pytestmark = pytest.mark.timeout(300)

_fork = multiprocessing.get_context("fork")
_FACTORY = "tests.store.tools_pipeline:pipeline"
_NEVER = ("is damaged", "Traceback", "WRONG", "wrong checksum")  # whatever a tool says
_ROUNDS = 7


def _drive(path: str, shards: int, output: str, to_the_end: bool) -> None:
    """Makes the store or opens it, and runs the pipeline on it until it is stopped, or to its end."""
    for _ in range(1000):  # a tool may have the store for a moment
        store = open_store(path, shards=shards)
        try:
            driver, executor = take(
                pipeline(output),
                store,
                slots=shards,
                clock=wall,
                ending=Ending.CLOSE if to_the_end else Ending.NEVER,
                owner="the pipeline",
            )
            break
        except StoreError as error:
            store.close()
            if "is in use by" not in str(error):
                raise
            time.sleep(0.02)
    driver.observer = Recorder(driver, spark=None)
    job = Job(driver, executor, until_exhausted=to_the_end, on_close=lambda: None)
    job.start()
    job.wait()


def _said(arguments: list[str]) -> tuple[int, str]:
    """A command in this process: its status, and all that it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(arguments)
    return status, said.getvalue()


def _look(path: str) -> tuple[int, str]:
    """What `millwheel ui` does, for one look."""
    try:
        store = open_to_read(path)
    except StoreError as error:
        return 1, str(error)
    try:
        server = Server(store, "0")
        try:
            server.look()
        finally:
            server.close()
    except StoreError as error:
        return 1, str(error)
    finally:
        store.close()
    return 0, ""


def _commands(path: str, scratch: Path, first: int) -> Iterator[tuple[str, Any]]:
    """Each tool once, by name; the looks more often than what takes the store."""
    looks = [
        ["status", "--store", path],
        ["top", "--count", "2", "--every", "0.01", "--store", path],
        ["explain", "Sums", "--store", path],
        ["inspect", "Sums", "user 3", "--store", path],
        ["apply", _FACTORY, "--dry-run", "--store", path],
        ["store", "check", path],
    ]
    takes = [
        ["rescale", str(1 + first // 4 % 2), "--timeout", "5", "--store", path],
        ["store", "compact", path],
        ["store", "copy", path, str(scratch / f"copy-{os.getpid()}")],
        ["store", "forget", "Nobody", "--store", path],
        ["store", "export", path, str(scratch / f"export-{os.getpid()}")],
    ]
    for arguments in [*looks, takes[first % len(takes)]]:
        yield (
            " ".join(arguments[: 2 if arguments[0] == "store" else 1]),
            lambda arguments=arguments: _said(arguments),
        )
    yield "ui", lambda: _look(path)


def _use_tools(where: Path, scratch: Path, stop: Any, found: Any) -> None:
    counts: dict[str, list[int]] = {}
    wrong: list[str] = []
    for turn in itertools.count(os.getpid()):
        path = where.read_text()
        for name, call in _commands(path, scratch, turn):
            try:
                status, said = call()
            except BaseException:
                status, said = 2, traceback.format_exc()
            done = counts.setdefault(name, [0, 0])
            done[status != 0] += 1
            if status not in (0, 1) or any(word in said for word in _NEVER):
                wrong.append(f"{name}: {status} {said}")
        for made in ("copy", "export"):
            shutil.rmtree(scratch / f"{made}-{os.getpid()}", ignore_errors=True)
        if stop.is_set():
            found.put((counts, wrong))
            return


def _until_it_works(arguments: list[str]) -> str:
    """A command that others may be in the way of."""
    said = ""

    def works() -> bool:
        nonlocal said
        status, said = _said(arguments)
        return status == 0

    try:
        eventually(works, 60)
    except AssertionError:
        raise AssertionError(said) from None
    return said


def _wait_for_output(folder: Path, files: int) -> None:
    eventually(lambda: len(list(folder.glob("*.json"))) > files, 100)


def test_the_output_is_exact_whatever_tools_run_beside_the_pipeline(tmp_path: Path) -> None:
    output, expected, where = tmp_path / "out", tmp_path / "expected", tmp_path / "where"
    for folder in (output, expected, tmp_path / "scratch"):
        folder.mkdir()
    run(pipeline(str(expected)), open_store("memory:"))
    path = str(tmp_path / "store-0")
    where.write_text(path)
    stop, found = _fork.Event(), _fork.Queue()
    tools = [
        _fork.Process(target=_use_tools, args=(where, tmp_path / "scratch", stop, found)) for _ in range(2)
    ]
    for tool in tools:
        tool.start()
    try:
        for turn in range(_ROUNDS):
            last = turn == _ROUNDS - 1
            before = len(list(output.glob("*.json")))
            driver = _fork.Process(target=_drive, args=(path, 2, str(output), last))
            driver.start()
            if last:
                driver.join(200)
                assert driver.exitcode == 0
                break
            _wait_for_output(output, before + 3)
            if turn % 2:
                _until_it_works(["stop", "--store", path])
                driver.join(60)
                assert driver.exitcode == 0
            else:
                assert driver.pid is not None
                os.kill(driver.pid, signal.SIGKILL)
                driver.join(60)
            if turn % 3 == 1:
                target = str(tmp_path / f"store-{turn + 1}")
                _until_it_works(["store", "copy", path, target])
                path = target
                where.write_text(path)
            _until_it_works(["store", "compact", path])
    finally:
        stop.set()
        reports = [found.get(timeout=100) for _ in tools]
        for tool in tools:
            tool.join(30)
    wrong = [text for _, texts in reports for text in texts]
    assert not wrong, "\n".join(wrong[:10])
    for counts, _ in reports:
        assert counts["status"][0], counts
    assert sum(counts.get("store export", [0])[0] for counts, _ in reports), reports
    assert written(output) == written(expected)
    assert "nothing is wrong" in _until_it_works(["store", "check", path])
