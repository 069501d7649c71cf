"""The service on the user's own data: files and tables in, anomalies out."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.apps.zeitgeist.inputs import Columns, open_source, register_source
from millwheel.cli import main
from millwheel.errors import InputError
from tests.servers.kafka import Broker
from tests.servers.topics import send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def told(folder: Path) -> list[tuple[str, str, int]]:
    values = [record.value for record in mw.sinks.JsonLines(folder).records()]
    return sorted((value["kind"], value["key"], value["start"] // mw.SECOND) for value in values)


@pytest.mark.spark
def test_counts_in_files(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for second in range(60):
        rows += [{"at": second + n / 10, "page": "home"} for n in range(8) if not 40 <= second < 45]
        rows += [{"at": second + n / 99, "page": "news"} for n in range(90 if second == 50 else 5)]
    random.Random(1).shuffle(rows)
    write(tmp_path / "a.jsonl", rows[::2])
    write(tmp_path / "b.jsonl", rows[1::2])
    out = tmp_path / "out"
    arguments = [str(tmp_path / "*.jsonl"), "--key", "page", "--time", "at", "--unit", "s", "--out", str(out)]
    assert main(["zeitgeist", *arguments]) == 0
    assert told(out / "anomalies") == [("dip", "home", 40), ("spike", "news", 50)]
    assert told(out / "episodes") == [("dip", "home", 40), ("spike", "news", 50)]
    text = capsys.readouterr().out
    assert f"{len(rows):,} records, 0 of them late and dropped; 1 spikes, 1 dips" in text
    assert "spike  news: 90 instead of 5" in text


@pytest.mark.spark
def test_values_in_a_table(tmp_path: Path, spark: SparkSession) -> None:
    rng = random.Random(3)
    rows = [(minute * 60, "web-1", rng.gauss(50, 2) + (60 if minute == 300 else 0)) for minute in range(400)]
    spark.createDataFrame(rows, "time long, host string, load double").createOrReplaceTempView("loads")
    arguments = ["--key", "host", "--value", "load", "--unit", "s", "--width", "1m", "--out", str(tmp_path)]
    assert main(["zeitgeist", "table:loads", *arguments]) == 0
    assert ("spike", "web-1", 300 * 60) in told(tmp_path / "anomalies")


@pytest.mark.spark
def test_times_of_a_table_in_another_unit_are_an_error_that_names_it(spark: SparkSession) -> None:
    spark.createDataFrame([(1_611_873_241_000,)], "time long").createOrReplaceTempView("in_ms")
    with pytest.raises(InputError, match=r"the table 'table:in_ms'.*give unit=\"ms\""):
        open_source("table:in_ms", Columns())
    assert open_source("table:in_ms", Columns(unit="us")) is not None


@pytest.mark.spark
def test_counts_in_a_topic(tmp_path: Path, spark: SparkSession, kafka: Broker) -> None:
    rows = []
    for second in range(60):
        rows += [{"at": second, "page": "home"} for _ in range(8) if not 40 <= second < 45]
        rows += [{"at": second, "page": "news"} for _ in range(90 if second == 50 else 5)]
    topic = kafka.make_topic(f"pages-{uuid.uuid4().hex}")
    send(kafka.servers, topic, rows)
    where = f"kafka://{kafka.servers}/{topic}"
    arguments = ["--key", "page", "--time", "at", "--unit", "s", "--out", str(tmp_path)]
    assert main(["zeitgeist", where, *arguments]) == 0
    assert told(tmp_path / "anomalies") == [("dip", "home", 40), ("spike", "news", 50)]


@pytest.mark.parametrize("text", ["kafka:queries", "kafka://localhost:9092", "kafka:///queries"])
def test_a_topic_that_is_none_says_how_one_is_named(text: str) -> None:
    with pytest.raises(InputError, match="kafka://HOST:PORT/TOPIC"):
        open_source(text, Columns())


def test_other_sources_can_be_plugged_in() -> None:
    mine = mw.injectors.Records([])
    seen = []
    register_source("mine", lambda text, columns: seen.append((text, columns)) or mine)  # type: ignore[func-returns-value]
    assert open_source("mine://there", Columns(time="at")) is mine
    assert seen == [("mine://there", Columns(time="at"))]


def test_a_source_that_is_not_there_says_which_are() -> None:
    with pytest.raises(InputError, match=r"no source for 'nothing:x': name files, or one of .*table:"):
        open_source("nothing:x", Columns())


@pytest.mark.parametrize("width", ["5", "m", "0s", "ten seconds"])
def test_a_width_that_is_none_says_what_is(width: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["zeitgeist", "x", "--key", "k", "--out", "o", "--width", width])
    assert "such as 500ms, 1s, 5m" in capsys.readouterr().err


@pytest.mark.spark
def test_diverted_input_a_command_for_each_anomaly_and_a_page(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"time": second, "country": "de", "page": "<news>"}
        for second in range(60)
        for _ in range(90 if second == 50 else 5)
    ]
    write(tmp_path / "a.jsonl", rows)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("no json\n" + json.dumps({"time": 51, "country": "de"}) + "\n")
    out = tmp_path / "out"
    arguments = ["--key", "country,page", "--unit", "s", "--errors", "divert", "--page", "--out", str(out)]
    alert = f"command:tee -a {tmp_path / 'alerts'}"
    assert main(["zeitgeist", str(tmp_path / "a.jsonl"), *arguments, "--alert", alert]) == 0
    assert told(out / "anomalies") == [("spike", "de|<news>", 50)]
    assert json.loads((tmp_path / "alerts").read_text())["why"] == "18 times the usual at 00:00"
    diverted = list(mw.sinks.JsonLines(out / "errors" / "input").records())
    assert len(diverted) == 2
    page = (out / "index.html").read_text()
    assert ">spike</b>de|&lt;news&gt;</h2>" in page
    assert "<p>1970-01-01 00:00:50 to 00:00:51: 18 times the usual at 00:00, 90 instead of 5 " in page
    assert page.count("<svg") == 1
    assert "The plots are in" in capsys.readouterr().out
