"""Lookups on Spark: DataFrames, a table that is refreshed while it runs, and drivers that are killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from tests.crash.victims import Process
from tests.spark.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
_FILES, _LINES = 12, 50
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_data_frame_is_looked_up_and_refreshed_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    users = tmp_path / "users"
    spark.createDataFrame([(1, "Ann")], "id int, name string").write.json(str(users))

    def frame() -> Any:  # a DataFrame keeps the files that were there when it was made
        return spark.read.schema("id int, name string").json(str(users / "*.json"))

    logs = tmp_path / "in"
    logs.mkdir()
    out = mw.sinks.JsonLines(tmp_path / "out")
    p = mw.Pipeline("enriched")
    clicks = p.inject("clicks", mw.injectors.Files(str(logs / "*.jsonl"), timestamp="at"))
    known = clicks.lookup(frame(), on={"user": "id"}, into="first")
    known.lookup(frame, on={"user": "id"}, refresh=50 * mw.MILLISECOND).sink(out)

    def write(number: int) -> None:
        (logs / f"{number}.jsonl").write_text(json.dumps({"at": number, "user": number}) + "\n")

    with mw.start(p, store=str(tmp_path / "store"), spark=spark) as job:
        write(1)
        eventually(lambda: len(list(out.records())) == 1)
        (users / "more.json").write_text('{"id": 2, "name": "Ben"}\n')
        eventually(lambda: job.status().lookups["clicks.lookup.lookup"].version > 1)
        write(2)
        eventually(lambda: len(list(out.records())) == 2)
    seen = [(record.value["name"], record.value["first"]) for record in out.records()]
    assert seen == [("Ann", {"name": "Ann"}), ("Ben", None)]


def test_killed_drivers_leave_each_record_once_with_one_version(tmp_path: Path) -> None:
    """The table is another one at every reading; sink and computation have seen the same of each record."""
    (tmp_path / "in").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    numbers = iter(range(_FILES))

    def write() -> None:
        part = next(numbers, None)
        if part is not None:
            lines = [json.dumps({"at": n, "n": part * _LINES + n, "id": n % 7}) for n in range(_LINES)]
            (tmp_path / "part").write_text("\n".join(lines) + "\n")
            (tmp_path / "part").rename(tmp_path / "in" / f"{part}.jsonl")

    for kills in range(3):
        if kills == 1:
            (tmp_path / "wide").touch()
        driver = Process(
            ["-m", "tests.lookup.victim", str(tmp_path), str(_FILES * _LINES)], cwd=ROOT, env=environment
        )
        try:
            for _ in range(3 if kills < 2 else _FILES):
                lines = len(driver.output)
                write()
                eventually(lambda d=driver, n=lines: len(d.output) > n or d.process.poll() is not None, 120)  # type: ignore[misc]
            if kills < 2:
                write()
                continue  # somewhere in the epoch of this file
            assert driver.ended(300)
            assert driver.process.returncode == 0, "".join(driver.errors)
        finally:
            if driver.process.poll() is None:
                driver.kill()
    seen = {r.value["n"]: r.value["read"] for r in mw.sinks.JsonLines(tmp_path / "found").records()}
    kept = [record.value for record in mw.sinks.JsonLines(tmp_path / "kept").records()]
    assert Counter(value["n"] for value in kept) == dict.fromkeys(range(_FILES * _LINES), 1)
    assert {value["n"]: value["read"] for value in kept} == seen
    assert len(set(seen.values())) > 2, "the table was refreshed between epochs"
