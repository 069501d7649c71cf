"""``millwheel apply`` and ``millwheel stop``, on a pipeline that runs in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.store.lmdb.lmdb_store import LmdbStore
from tests.spark.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
_LIMIT = 200.0  # seconds: a process that starts Spark on a busy machine

FIRST = """
import millwheel as mw
from helping_module import FACTOR, Counter

def pipeline():
    p = mw.Pipeline("changing")
    p.inject("queries", mw.injectors.Files("logs/*.jsonl", timestamp="time", slack=0))
    p.add(Counter(), inputs={"queries": mw.by("query")}, outputs=["counts"])
    p.sink("counts", mw.sinks.JsonLines("out/counts"))
    return p
"""

HELPING = """
import millwheel as mw

FACTOR = 1

class Counter(mw.Computation):
    def process_record(self, record):
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("counts", [record.value["i"], self.state["n"], FACTOR])
"""

MORE = """
class Doubled(mw.Computation):
    def process_record(self, record):
        self.produce("doubled", record.value["i"] * 2)

def larger():
    p = pipeline()
    p.add(Doubled(), inputs={"queries": mw.by("query")}, outputs=["doubled"], replay="earliest")
    p.sink("doubled", mw.sinks.JsonLines("out/doubled"))
    return p

def other_keys():
    p = mw.Pipeline("changing")
    p.inject("queries", mw.injectors.Files("logs/*.jsonl", timestamp="time", slack=0))
    p.add(Counter(), inputs={"queries": mw.by("i")}, outputs=["counts"])
    return p
"""


class Project:
    """A folder with a module and logs, and commands called in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "logs").mkdir()
        self.write("changing_module.py", FIRST)
        self.write("helping_module.py", HELPING)
        self.sent = 0
        self.running: subprocess.Popen[str] | None = None

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def send(self, count: int) -> None:
        with open(self.folder / "logs" / "a.jsonl", "a") as file:
            for _ in range(count):
                file.write(
                    json.dumps({"time": self.sent, "i": self.sent, "query": f"q{self.sent % 3}"}) + "\n"
                )
                self.sent += 1

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "millwheel.cli", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str) -> tuple[int, str, str]:
        process = self.command(*arguments, "--store", "state")
        out, err = process.communicate(timeout=200)
        return process.returncode, out, err

    def start(self) -> None:
        self.running = self.command("run", "changing_module:pipeline", "--store", "state", "--json")

    def seen(self, stream: str) -> list[Any]:
        path = self.folder / "out" / stream
        return [record.value for record in mw.sinks.JsonLines(path).records()] if path.exists() else []

    def ended(self) -> dict[str, Any]:
        assert self.running is not None
        out, err = self.running.communicate(timeout=100)
        assert self.running.returncode == 0, err
        report: dict[str, Any] = json.loads(out)
        return report


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    if made.running is not None and made.running.poll() is None:
        made.running.kill()
        made.running.wait()


def test_a_pipeline_changes_and_stops_at_the_word_of_other_processes(project: Project) -> None:
    project.send(30)
    project.start()
    eventually(lambda: len(project.seen("counts")) == 30, _LIMIT)

    # The new code wins, also that of a module which the running process has imported in its old form.
    project.write("changing_module.py", FIRST + MORE)
    project.write("helping_module.py", HELPING.replace("FACTOR = 1", "FACTOR = 2"))
    status, out, err = project.call("apply", "changing_module:larger", "--dry-run")
    assert status == 0, err
    assert "+ computation Doubled" in out
    assert "+ sink doubled to JsonLines" in out
    assert "= computation Counter" in out
    assert not project.seen("doubled")

    status, out, err = project.call("apply", "changing_module:larger")
    assert status == 0, err
    assert "changing adds Doubled; keeps Counter" in out
    assert "asked process" in err
    eventually(lambda: len(project.seen("doubled")) == 30, _LIMIT)
    project.send(20)
    eventually(lambda: len(project.seen("doubled")) == 50, _LIMIT)
    assert sorted(project.seen("doubled")) == [2 * i for i in range(50)]
    counts = sorted(project.seen("counts"))
    assert [(i, n) for i, n, _ in counts] == [(i, i // 3 + 1) for i in range(50)]
    assert [factor for _, _, factor in counts] == [1] * 30 + [2] * 20

    status, out, err = project.call("apply", "changing_module:other_keys")
    assert status == 1
    assert "the key extractor was by('query') and now is by('i')" in err
    status, out, err = project.call("store", "forget", "Doubled")
    assert status == 1
    assert "is in the pipeline that runs" in err

    status, out, err = project.call("apply", "changing_module:pipeline", "--json", "--removed", "drop")
    assert status == 0, err
    assert json.loads(out)["removed"] == ["Doubled"]
    status, out, err = project.call("store", "forget", "Doubled", "--json")
    assert (status, json.loads(out)["computation"]) == (0, "Doubled")

    project.send(10)
    eventually(lambda: len(project.seen("counts")) == 60, _LIMIT)
    status, out, err = project.call("stop", "--drain")
    assert status == 0, err
    assert "drained and stopped after epoch" in out
    assert project.ended()["records"]["Counter"] == 60

    status, out, err = project.call("stop")
    assert status == 1
    assert "no pipeline runs on this store" in err
    status, out, err = project.call("apply", "changing_module:other_keys", "--dry-run", "--json")
    assert status == 1, "what cannot be is refused though nothing runs"
    assert len(json.loads(out)["refusals"]) == 1
    store = LmdbStore(project.folder / "state")
    with store.journal.snapshot() as snapshot:
        left = [key for key, _ in snapshot.scan(b"\x00", b"\xff") if key.startswith((b"request", b"answer"))]
    store.close()
    assert left == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["apply", "changing_module:pipeline"], "there is no store at"),
        (["apply", "changing_module:nothing"], "has no 'nothing'"),
        (["apply", "changing_module:FACTOR"], "is 1, not a function that returns"),
        (["stop"], "there is no store at"),
        (["store", "forget", "Any"], "there is no store at"),
    ],
)
def test_a_mistake_gets_a_message_and_no_traceback(
    project: Project, arguments: list[str], message: str
) -> None:
    status, _, err = project.call(*arguments)
    assert status == 1
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [["apply"], ["stop"], ["store", "forget"]])
def test_help_has_an_example(project: Project, command: list[str]) -> None:
    process = project.command(*command, "--help")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "example: millwheel" in out
