"""Several metrics at once, and what a person said of the anomalies, from run to run on one store."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import millwheel as mw
from millwheel.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HOSTS = ("w-1", "w-2")
FIRST, SECOND = 300, 700  # minutes in which the heat of both hosts is odd


def write(path: Path, minutes: range) -> None:
    """Both hosts measure the same; a record has a load, a heat, or both."""
    lines = []
    for minute in minutes:
        rng = random.Random(minute)
        heat = rng.gauss(50, 1) + {FIRST: 7, SECOND: 25}.get(minute, 0)
        for host in HOSTS:
            row = {"time": minute * 60, "host": host, "load": minute * 7 % 10, "heat": heat}
            if minute % 3 == 0:
                del row["load"]
            lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))


def told(folder: Path) -> set[tuple[str, int]]:
    found = mw.sinks.JsonLines(folder / "out" / "anomalies").records()
    return {(record.value["key"], record.value["start"] // mw.MINUTE) for record in found}


@pytest.mark.parametrize("ending", [[], ["--once"]], ids=["closed", "left open"])
def test_each_metric_is_watched_by_itself_and_one_that_was_none_is_not_told_again(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str], ending: list[str]
) -> None:
    arguments = [
        *("zeitgeist", str(tmp_path / "*.jsonl"), "--key", "host", "--value", "load,heat", "--unit", "s"),
        *(
            "--sensitivity",
            "3",
            "--width",
            "1m",
            "--out",
            str(tmp_path / "out"),
            "--store",
            str(tmp_path / "store"),
            *ending,
        ),
    ]
    write(tmp_path / "a.jsonl", range(400))
    assert main(arguments) == 0
    assert told(tmp_path) == {("w-1|heat", FIRST), ("w-2|heat", FIRST)}

    (line,) = [
        line
        for path in (tmp_path / "out" / "anomalies").glob("*.jsonl")
        for line in path.read_text().splitlines()
        if "w-1|heat" in line and str(FIRST * mw.MINUTE) in line
    ]
    feedback = tmp_path / "none.txt"
    feedback.write_text(f"{line}\n" * 8)
    write(tmp_path / "b.jsonl", range(400, 800))
    assert main([*arguments, "--feedback", str(feedback)]) == 0
    assert told(tmp_path) == {("w-1|heat", FIRST), ("w-2|heat", FIRST), ("w-2|heat", SECOND)}
    assert "\n800 records, 0 of them late" in capsys.readouterr().out
