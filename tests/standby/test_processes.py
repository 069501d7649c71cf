"""Two processes with ``--standby`` on one store: one leads, and when it is killed the other goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from millwheel.store.open import open_to_read
from millwheel.watch import text
from millwheel.watch.view import View, look
from tests.spark.waiting import eventually
from tests.standby.led import read_output

pytestmark = pytest.mark.spark

_ROOT = Path(__file__).parents[2]
_NIGHTLY = os.environ.get("MILLWHEEL_NIGHTLY")


def _start(folder: Path, store: str, number: int) -> subprocess.Popen[str]:
    command = ["run", "tests.standby.led:pipeline", "--store", store, "--standby", "--takeover-after", "3"]
    with open(folder / f"log-{number}", "w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "millwheel.cli", *command],
            cwd=_ROOT,
            env={**os.environ, "LED": os.fspath(folder), "SPARK_LOCAL_DIRS": os.fspath(folder)},
            stdout=log,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def _view(store: str) -> View | None:
    try:
        opened = open_to_read(store)
    except Exception:
        return None  # it is just being made
    try:
        return look(opened, time.time_ns() // 1000)
    except Exception:
        return None
    finally:
        opened.close()


def _sender(folder: Path) -> Callable[[int], None]:
    source = folder / "in"
    source.mkdir()

    def send(number: int) -> None:
        (source / f".{number}").write_text(f'{{"t": {number}, "n": {number}}}\n')
        os.rename(source / f".{number}", source / f"{number}.jsonl")

    return send


_CASES = [
    *(("lmdb", "killed"), ("postgres", "hangs")),
    *(("lmdb", "hangs"), ("postgres", "killed"), ("s3", "killed"), ("s3", "hangs")),
]


@pytest.mark.parametrize(("where", "way"), _CASES if _NIGHTLY else _CASES[:2], indirect=["where"])
def test_the_standby_goes_on_when_the_leader_is_gone(way: str, where: str, tmp_path: Path) -> None:
    send = _sender(tmp_path)
    processes = [_start(tmp_path, where, number) for number in range(2)]
    by_id = {process.pid: process for process in processes}
    try:
        send(1)
        eventually(lambda: read_output(tmp_path) == [1], 120)
        eventually(lambda: bool((view := _view(where)) and view.standbys), 120)
        view = _view(where)
        assert view is not None
        assert view.running
        leader = by_id[int(view.owner.split()[1])]
        [standby] = [process for process in processes if process is not leader]
        assert view.standbys[0].owner.startswith(f"process {standby.pid} on ")
        assert f"; standby: process {standby.pid} on " in text.headline(view)
        send(2)
        eventually(lambda: read_output(tmp_path) == [1, 2], 120)
        if way == "killed":
            leader.kill()
        else:
            for process in [psutil.Process(leader.pid), *psutil.Process(leader.pid).children(recursive=True)]:
                process.send_signal(signal.SIGSTOP)
        send(3)
        eventually(lambda: read_output(tmp_path) == [1, 2, 3], 120)
        view = _view(where)
        assert view is not None
        assert view.owner.startswith(f"process {standby.pid} on ")
        assert view.standbys == []
        if way == "hangs":
            for process in [*psutil.Process(leader.pid).children(recursive=True), psutil.Process(leader.pid)]:
                process.send_signal(signal.SIGCONT)
            assert leader.wait(120) != 0
            assert "taken over by process" in "".join(path.read_text() for path in tmp_path.glob("log-*"))
        send(4)
        eventually(lambda: read_output(tmp_path) == [1, 2, 3, 4], 120)
        standby.send_signal(signal.SIGTERM)
        assert standby.wait(60) == 0
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert read_output(tmp_path) == [1, 2, 3, 4]


@pytest.mark.skipif(not _NIGHTLY, reason="three Sparks at a time")
@pytest.mark.parametrize("where", ["lmdb", "postgres"], indirect=True)
def test_of_two_standbys_of_a_killed_leader_one_leads_and_the_other_waits_on(
    where: str, tmp_path: Path
) -> None:
    send = _sender(tmp_path)
    processes = {process.pid: process for process in (_start(tmp_path, where, n) for n in range(3))}

    def leader_with(standbys: int) -> int | None:
        view = _view(where)
        if view is None or not view.running or len(view.standbys) != standbys:
            return None
        return int(view.owner.split()[1])

    leaders: list[int] = []

    def led(number: int) -> bool:
        leader = leader_with(3 - number)
        if leader is None or read_output(tmp_path) != [*range(1, number + 1)]:
            return False
        leaders.append(leader)
        return True

    try:
        for number in range(1, 4):
            send(number)
            eventually(partial(led, number), 120)
            leader = leaders[-1]
            assert processes[leader].poll() is None
            os.killpg(leader, signal.SIGKILL)
            processes[leader].wait()
    finally:
        for process in processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert sorted(leaders) == sorted(processes), "each of them led once, and no driver failed"
