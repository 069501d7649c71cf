"""Alerts to a topic of Kafka: each anomaly once, whatever happens to the broker in between."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millwheel as mw
from millwheel.apps.zeitgeist import alerts
from millwheel.cli import main
from tests.servers.kafka import Broker
from tests.servers.topics import receive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIRST, SECOND = ("dip", "home", 40), ("spike", "news", 50)


def write(path: Path, seconds: range) -> None:
    """Pages by second; ``home`` is silent for a while, and ``news`` spikes."""
    rows = []
    for second in seconds:
        rows += [{"time": second, "page": "home"} for _ in range(8) if not 40 <= second < 45]
        rows += [{"time": second, "page": "news"} for _ in range(90 if second == 50 else 5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(folder: Path, target: str) -> list[str]:
    return [
        *("zeitgeist", str(folder / "*.jsonl"), "--key", "page", "--unit", "s"),
        *("--out", str(folder / "out"), "--store", str(folder / "store"), "--alert", target),
    ]


def named(values: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return sorted((value["kind"], value["key"], value["start"] // mw.SECOND) for value in values)


def in_topic(kafka: Broker, topic: str) -> list[tuple[str, str, int]]:
    return named([json.loads(message.value() or b"") for message in receive(kafka.servers, topic)])


def in_files(folder: Path) -> list[tuple[str, str, int]]:
    return named([record.value for record in mw.sinks.JsonLines(folder / "out" / "anomalies").records()])


def test_a_topic_gets_each_anomaly_once_also_from_the_next_run(
    tmp_path: Path, spark: SparkSession, kafka: Broker
) -> None:
    topic = kafka.make_topic(f"alerts-{uuid.uuid4().hex}")
    arguments = command(tmp_path, f"kafka://{kafka.servers}/{topic}")
    write(tmp_path / "a.jsonl", range(48))
    assert main(arguments) == 0
    assert in_topic(kafka, topic) == [FIRST]
    (message,) = receive(kafka.servers, topic)
    assert message.key() == b"home"
    assert json.loads(message.value() or b"")["why"] == "none at 00:00, usually 8"
    write(tmp_path / "b.jsonl", range(48, 60))
    assert main(arguments) == 0
    assert main(arguments) == 0
    assert in_topic(kafka, topic) == in_files(tmp_path) == [FIRST, SECOND]


def test_a_topic_that_is_missing_is_named_before_anything_is_read(
    tmp_path: Path, spark: SparkSession, kafka: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"alerts-{uuid.uuid4().hex}"
    arguments = command(tmp_path, f"kafka://{kafka.servers}/{topic}")
    write(tmp_path / "a.jsonl", range(60))
    assert main(arguments) == 1
    assert f"{topic!r}): there is no such topic" in capsys.readouterr().err
    assert in_files(tmp_path) == []
    kafka.make_topic(topic)
    assert main(arguments) == 0
    assert in_topic(kafka, topic) == in_files(tmp_path) == [FIRST, SECOND]


def test_a_broker_that_dies_stops_the_run_and_the_next_one_tells_each_anomaly_once(
    tmp_path: Path,
    spark: SparkSession,
    kafka: Broker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.make_topic(f"alerts-{uuid.uuid4().hex}")
    arguments = command(tmp_path, f"kafka://{kafka.servers}/{topic}")
    write(tmp_path / "a.jsonl", range(60))
    check = mw.sinks.Kafka.open

    def check_and_die(sink: mw.sinks.Kafka) -> None:
        check(sink)
        kafka.stop(signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(alerts, "PATIENCE", 0.3)
        patch.setattr(mw.sinks.Kafka, "open", check_and_die)
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert f"{topic!r}): the brokers did not answer within 0.3 seconds" in error
        assert "Nothing is lost" in error
        patch.setattr(mw.sinks.Kafka, "open", check)
        assert main(arguments) == 1  # still away: it is named before anything is read
        assert f"{topic!r}): the brokers did not answer" in capsys.readouterr().err
    kafka.start()
    assert main(arguments) == 0
    assert in_topic(kafka, topic) == in_files(tmp_path) == [FIRST, SECOND]
