"""An anomaly that was none: its key must be odder from then on, other keys need not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.apps.zeitgeist.feedback import open_feedback
from millwheel.apps.zeitgeist.pipeline import count_anomalies, value_anomalies
from millwheel.apps.zeitgeist.settings import Settings

TOLD = {"key": "a", "kind": "spike", "found": 70 * mw.SECOND}


def spikes(said: int) -> list[str]:
    """Keys that are told: both have the same slight spike, of ``a`` it was said so often that it is none."""
    records = [
        mw.Record(value={"page": page}, timestamp=second * mw.SECOND)
        for second in range(100)
        for page in "ab"
        for _ in range(32 if second == 80 else 6)
    ]
    feedback = mw.injectors.Records([mw.Record(value={"key": "a"}, timestamp=0)] * said)
    p = count_anomalies(
        mw.injectors.Records(records), {"WindowCounter": mw.by("page")}, Settings(), feedback=feedback
    )
    h = mw.testing.Harness(p)
    for _ in range(said):
        h.send("feedback", {"key": "a"}, timestamp=0)
    h.advance("feedback", mw.MAX_TIME)
    for record in records:
        h.send("records", record.value, timestamp=record.timestamp)
    h.drain()
    return sorted(record.key for record in h.output("anomalies"))


def test_a_key_of_which_anomalies_were_none_must_be_odder() -> None:
    assert spikes(said=0) == ["a", "b"]
    assert spikes(said=8) == ["b"]


def test_lines_of_the_anomalies_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text(json.dumps(TOLD) + "\n\n" + json.dumps({"key": "a", "value": TOLD}) + "\n")
    feedback = open_feedback(path)
    assert feedback is not None
    [(partition, end)] = feedback.poll().items()
    assert [r.value for r in feedback.read(partition, None, end)] == [
        {"key": "a", "found": TOLD["found"]}
    ] * 2


def test_a_file_in_which_nothing_is_said_yet_is_no_feedback(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    assert open_feedback(tmp_path / "none.jsonl") is None


@pytest.mark.parametrize("line", ["no json", "[1]", '{"key": "a"}', '{"found": 5}'])
def test_a_line_that_is_no_anomaly_is_an_error_that_names_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text(json.dumps(TOLD) + "\n" + line + "\n")
    with pytest.raises(mw.InputError, match=r"none.jsonl, line 2: this is no anomaly as reported"):
        open_feedback(path)


def test_a_file_that_is_not_there_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(mw.InputError, match="copy lines of OUT/anomalies into one"):
        open_feedback(tmp_path / "none.jsonl")


def test_several_metrics_are_watched_each_by_itself() -> None:
    settings = Settings(kind="values", width=mw.MINUTE)
    p = value_anomalies(mw.injectors.Records([]), mw.by("host"), ["load", "heat"], settings)
    h = mw.testing.Harness(p)
    for minute in range(400):
        value = {
            "host": "w",
            "load": float(minute * 7 % 10),
            "heat": 90.0 if minute == 300 else minute * 3 % 5,
        }
        if minute % 2:
            del value["load"]
        h.send("records", value, timestamp=minute * mw.MINUTE)
    h.drain()
    assert ("w|heat", 300 * mw.MINUTE) in {(r.key, r.value["start"]) for r in h.output("anomalies")}
    assert h.state("ValueCalculator", "w|load").age == 200
