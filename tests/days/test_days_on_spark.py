"""Two days of every kind of injector on one store, on Spark; also where the process is killed in them."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.cli import main
from tests.connectors.kill_servers import server_or_none
from tests.crash.victims import Process
from tests.days.world import A_DAY, grow, pipeline, windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
MONDAY = [(0, 49), (1, 11)]
TUESDAY = [(1, 39), (2, 21)]


@pytest.fixture
def place(request: pytest.FixtureRequest) -> tuple[str | None, str]:
    """The servers and a topic of Kafka; none where it cannot be had."""
    broker = server_or_none(request, "kafka")
    if broker is None:
        return None, ""
    return broker.servers, broker.make_topic(f"days-{uuid.uuid4().hex}")


def test_the_same_command_every_day_gives_each_day_its_windows(
    tmp_path: Path, spark: SparkSession, place: tuple[str | None, str]
) -> None:
    kinds: list[str] = []
    for day, wanted in enumerate((MONDAY, MONDAY + TUESDAY)):
        grow(tmp_path, day, *place)
        p = pipeline(tmp_path, day, spark, *place)
        report = mw.run(p, store=tmp_path / "store", spark=spark)
        kinds = list(report.late)
        assert report.late == dict.fromkeys(kinds, 0)
        assert report.records == dict.fromkeys(kinds, A_DAY)
        assert report.low_watermarks == dict.fromkeys(kinds, mw.MAX_TIME)
        assert {kind: windows(tmp_path, kind) for kind in kinds} == dict.fromkeys(kinds, sorted(wanted))
    again = mw.run(pipeline(tmp_path, 1, spark, *place), store=tmp_path / "store", spark=spark)
    assert again.records_in == 0
    assert {kind: len(windows(tmp_path, kind)) for kind in kinds} == dict.fromkeys(kinds, 4)


def test_without_closing_two_days_give_what_one_would(
    tmp_path: Path, spark: SparkSession, place: tuple[str | None, str]
) -> None:
    grow(tmp_path, 0, *place)
    mw.run(pipeline(tmp_path, 0, spark, *place), store=tmp_path / "store", spark=spark, close=False)
    grow(tmp_path, 1, *place)
    report = mw.run(pipeline(tmp_path, 1, spark, *place), store=tmp_path / "store", spark=spark)
    kinds = list(report.late)
    assert report.late == dict.fromkeys(kinds, 0)
    assert all(windows(tmp_path, kind) == [(0, 49), (1, 50), (2, 21)] for kind in kinds)


def test_a_kill_within_the_days_and_between_them_loses_nothing(
    tmp_path: Path, place: tuple[str | None, str]
) -> None:
    """Monday dies while it is read, and again as it concludes; Tuesday is then run at once."""

    def run(day: int, dies: int | str | None) -> Any:
        config = {"folder": str(tmp_path), "day": day, "dies": dies, "servers": place[0], "topic": place[1]}
        process = Process(
            ["-m", "tests.days.world", json.dumps(config)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            assert process.ended(180), "".join(process.errors)
        finally:
            if process.process.poll() is None:
                process.kill()
        assert process.process.returncode == (0 if dies is None else -9), "".join(process.errors)
        return None if dies is not None else json.loads(process.output[-1])

    grow(tmp_path, 0, *place)
    run(0, dies=1)
    run(0, dies="concluding")
    grow(tmp_path, 1, *place)
    late, records_in = run(1, dies=None)
    assert set(late.values()) == {0}
    assert records_in == A_DAY * len(late)
    wanted = dict.fromkeys(late, sorted(MONDAY + TUESDAY))
    assert {kind: windows(tmp_path, kind) for kind in late} == wanted


def test_the_zeitgeist_of_two_days(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / "*.jsonl"), "--key", "page", "--time", "at", "--unit", "s", "--json"]
    arguments += ["--out", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    for day in range(2):
        rows = []
        for second in range(60 * day, 60 * (day + 1)):
            rows += [{"at": second, "page": "home"} for _ in range(8) if not 100 <= second < 105]
            rows += [{"at": second, "page": "news"} for _ in range(90 if second == 110 else 5)]
        (tmp_path / f"{day}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert main(["zeitgeist", *arguments]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["records_in"] == len(rows)
        assert set(report["late"].values()) == {0}
    found = [record.value for record in mw.sinks.JsonLines(tmp_path / "out" / "anomalies").records()]
    told = sorted((each["kind"], each["key"], each["start"] // mw.SECOND) for each in found)
    assert told == [("dip", "home", 100), ("spike", "news", 110)]
