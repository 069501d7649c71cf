"""`millwheel status`, `inspect`, `explain`, `top` and `ui`: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millwheel.cli import main
from millwheel.store.base import Get, Snapshot
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.watch.key_view import inspect
from millwheel.watch.view import look
from tests.spark.sources import Feed
from tests.spark.waiting import eventually
from tests.watch.running import pipeline, running, stopped, visits, wall


@pytest.fixture(params=["lmdb", "postgres"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The store of a pipeline that has stopped."""
    where = str(tmp_path / "store") if request.param == "lmdb" else request.getfixturevalue("schema_url")
    stopped(where).close()
    return str(where)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "inspect", "explain", "top", "ui"])
def test_help_helps_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"example: millwheel {command} " in " ".join(capsys.readouterr().out.split())


def test_status_is_a_table_of_computations_and_injectors(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = said(capsys, "status", "--store", path).splitlines()
    assert lines[0].startswith("visits: stopped, epoch ")
    assert "40 records in" in lines[0]
    head = next(line for line in lines if line.startswith("computation"))
    row = next(line for line in lines if line.startswith("Visits"))
    assert head.index("records") + len("records") == row.index(" 40 ") + len(" 40"), "they line up"
    assert "failed" not in head, "nothing failed"
    assert any(line.startswith("in ") and "only was read so far" in line for line in lines)


def test_status_as_json_is_the_view(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = json.loads(said(capsys, "status", "--store", path, "--json"))
    assert (value["pipeline"], value["records_in"], value["running"]) == ("visits", 40, False)
    assert [part["name"] for part in value["computations"]] == ["Visits", "Totals"]


def test_inspect_shows_a_key(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "inspect", "Visits", "regular", "--store", path)
    assert '"seen": 14' in text
    assert "timer '3' at 1970-01-01T00:00:04.000000Z (watermark)" in text
    assert "no row" in said(capsys, "inspect", "Visits", "nobody", "--store", path)
    value = json.loads(said(capsys, "inspect", "Visits", "regular", "--store", path, "--json"))
    assert value["state"] == {"seen": 14}


def test_explain_says_why(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "injector in stands at" in said(capsys, "explain", "Totals", "--store", path)


def test_top_shows_the_furthest_behind_and_the_hot_key(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "top", "--store", path, "--count", "1")
    assert "'regular'" in text
    assert "the last" in text
    lines = said(capsys, "top", "--store", path, "--count", "2", "--every", "0.01", "--json").splitlines()
    assert [json.loads(line)["records_in"] for line in lines] == [40, 40]


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["inspect", "Visits", "a"], ["explain", "Visits"], ["top"], ["ui", "0"]],
    ids=lambda arguments: arguments[0],
)
def test_a_store_that_is_not_there_is_said_and_not_made(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--store", str(tmp_path / "nothing")]) == 1
    assert "there is no store at" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_an_unknown_computation_is_said(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "Nobody", "a", "--store", path]) == 1
    assert "there are Visits, Totals" in capsys.readouterr().err


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "millwheel.cli", *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
        text=True,
        # Ours may ignore it, as what a shell starts with & does, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_running_pipeline_is_seen_from_another_process(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store", shards=2)
    with running(pipeline(Feed({"only": visits(40)}, opened=40)), store) as job:
        eventually(lambda: job.status().records_in == 40)
        with command("status", "--json", "--store", str(tmp_path / "store")) as process:
            value = json.loads(process.communicate(timeout=60)[0])
        assert (value["running"], value["records_in"]) == (True, 40)
        assert job.wait(timeout=0) is None, "the pipeline has not been disturbed"


def test_the_page_of_a_store_is_served_until_it_is_interrupted(path: str) -> None:
    with command("ui", "0", "--store", path) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{url}api/status", timeout=60) as answer:
            assert json.load(answer)["view"]["records_in"] == 40
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130


class Counting:
    """A shard that counts what is read of it."""

    def __init__(self, shard: object) -> None:
        self._shard = shard
        self.gets = 0
        self.scans = 0

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        with self._shard.snapshot() as inner:  # type: ignore[attr-defined]
            yield _CountingSnapshot(self, inner)  # type: ignore[misc]


class _CountingSnapshot:
    def __init__(self, counting: Counting, inner: Snapshot) -> None:
        self._counting = counting
        self._inner = inner

    def get(self, key: bytes) -> bytes | None:
        self._counting.gets += 1
        get: Get = self._inner.get
        return get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._counting.scans += 1
        return self._inner.scan(start, stop)


def test_status_reads_no_row_and_inspect_reads_one(tmp_path: Path) -> None:
    store = stopped(tmp_path / "store")
    shards = [Counting(shard) for shard in store.shards]
    store.shards = shards  # type: ignore[assignment]
    look(store, wall())
    assert [(shard.gets, shard.scans) for shard in shards] == [(0, 0)] * 2
    inspect(store, "Visits", "regular")
    assert sorted((shard.gets, shard.scans) for shard in shards) == [
        (0, 0),
        (2, 0),
    ]  # and the tablet's counters
    store.close()
