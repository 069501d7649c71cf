"""The tools on a store in object storage: check, compact, copy, export, and commands that only look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.cli import main
from millwheel.store.open import open_store
from tests.servers.s3 import Server
from tests.store.driving import run, run_to_the_end, take


class Count(mw.Computation):
    """Counts, and says so at the end of a window."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer("end", 100_000)

    def process_timer(self, timer: mw.Timer) -> None:
        self.produce("counts", self.state["n"])


def _pipeline(sink: mw.Sink | None = None) -> mw.Pipeline:
    p = mw.Pipeline("tools")
    records = [mw.Record(value=0, timestamp=number, key=f"k{number % 9}", id=number) for number in range(90)]
    p.inject("in", mw.injectors.Records(records, per_epoch=10))
    p.add(Count(), inputs={"in": mw.by_key}, outputs=["counts"])
    p.sink("counts", sink or mw.sinks.Collect())
    return p


def _begin(where: str | Path, epochs: int) -> None:
    store = open_store(where, shards=2)
    driver, executor = take(_pipeline(), store, slots=2)
    for _ in range(epochs):
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    driver.close()
    store.close()


def _objects(s3: Server) -> dict[str, bytes]:
    folder = s3.folder / "data"
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pipeline_moves_from_a_folder_to_object_storage_to_postgres_and_back(
    tmp_path: Path, s3_url: str, schema_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _begin(tmp_path / "laptop", 4)
    places = [str(tmp_path / "laptop"), s3_url, schema_url, f"file://{tmp_path}/shared", str(tmp_path / "b")]
    for shards, source, target in zip("4288", places, places[1:], strict=False):
        assert main(["store", "copy", source, target, "--shards", shards, "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["epoch"], done["shards"]) == (4, int(shards))
        assert main(["store", "check", target]) == 0
        assert "nothing is wrong" in capsys.readouterr().out
    sink = mw.sinks.Collect()
    run_to_the_end(*take(_pipeline(sink), open_store(places[-1])))
    assert sorted((record.key, record.value) for record in sink.records) == [(f"k{n}", 10) for n in range(9)]


def test_it_is_compacted_and_runs_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/objects?grace=0.001"
    _begin(url, 4)
    for _ in range(2):  # what a snapshot stands for goes when it has been there for the grace period
        _begin(url, 1)
        assert main(["store", "compact", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["bytes_after"] > 0
    assert not (tmp_path / "objects" / "shard-00" / "log" / f"{1:020d}").exists()
    assert main(["store", "check", url]) == 0
    sink = mw.sinks.Collect()
    store = open_store(url)
    run_to_the_end(*take(_pipeline(sink), store))
    store.close()
    assert sorted((record.key, record.value) for record in sink.records) == [(f"k{n}", 10) for n in range(9)]


def test_it_is_not_compacted_while_it_is_in_use(s3_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(s3_url)
    store.lock("the driver")
    assert main(["store", "compact", s3_url]) == 1
    assert "in use by the driver" in capsys.readouterr().err
    store.close()


@pytest.mark.parametrize(
    "command",
    [
        ["status", "--store"],
        ["top", "--count", "1", "--store"],
        ["explain", "Count", "--store"],
        ["inspect", "Count", "k1", "--store"],
        ["store", "check"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_looks_writes_nothing(
    s3: Server, s3_url: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(_pipeline(), open_store(s3_url, shards=2))
    before = _objects(s3)
    assert main([*command, s3_url]) == 0
    capsys.readouterr()
    assert _objects(s3) == before
