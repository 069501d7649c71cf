"""The command line, called as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millwheel.cli import main

MODULE = """
import millwheel as mw

class Counter(mw.Computation):
    def process_record(self, record):
        self.state["n"] = self.state.get("n", 0) + 1
        self.produce("counts", self.state["n"])

def pipeline():
    p = mw.Pipeline("counting")
    p.inject("queries", mw.injectors.Files("logs/*.jsonl", timestamp="time"))
    p.add(Counter(), inputs={"queries": mw.by("query")}, outputs=["counts"])
    p.sink("counts", mw.sinks.JsonLines("out"))
    return p

def number():
    return 7
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module and some logs, as the working directory."""
    (tmp_path / "counting_module.py").write_text(MODULE)
    (tmp_path / "logs").mkdir()
    lines = [json.dumps({"time": i, "query": f"q{i % 3}"}) for i in range(30)]
    (tmp_path / "logs" / "a.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "counting_module", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize("command", [[], ["demo"], ["run"], ["zeitgeist"]])
def test_help_helps_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "usage: millwheel" in text
    assert not command or "example: millwheel" in text


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("counting", "named MODULE:FACTORY"),
        ("no_such_module:pipeline", "there is no module 'no_such_module'"),
        ("counting_module:nothing", "has no 'nothing'"),
        ("counting_module:number", "returned 7, not a millwheel.Pipeline"),
    ],
)
def test_a_wrong_name_of_a_pipeline_says_what_is_wrong(
    name: str, message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", name, "--store", "state"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.spark
def test_a_run_that_drains_ends_with_a_report_and_goes_on_the_next_time(
    project: Path, capsys: pytest.CaptureFixture[str], spark: object
) -> None:
    arguments = ["run", "counting_module:pipeline", "--store", "state", "--drain", "--json"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["records_in"], report["produced"]) == (30, {"Counter": 30})
    with (project / "logs" / "a.jsonl").open("a") as file:
        file.write('{"time": 31, "query": "q0"}\n')
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["records_in"] == 1
    lines = [line for path in (project / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["value"] for line in lines) == sorted([*range(1, 11)] * 3 + [11])


@pytest.mark.parametrize("wrong", ["spark.executor.memory", "executor.memory=4g", "=4g"])
def test_a_setting_of_spark_is_a_name_and_a_value(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "counting_module:pipeline", "--store", "state", "--conf", wrong])
    assert ended.value.code == 2
    assert f"spark.NAME=VALUE, not '{wrong}'" in capsys.readouterr().err


@pytest.mark.spark
def test_the_demo_finds_what_was_planted(
    project: Path, capsys: pytest.CaptureFixture[str], spark: object
) -> None:
    assert main(["demo", "--records", "100,000", "--json", "--report", "out/report.html"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == pytest.approx(100_000, rel=0.05)
    assert found["late"] == 0
    assert {planted["kind"] for planted in found["planted"]} == {"spike", "dip"}
    assert all(planted["buckets_until_told"] <= 4 for planted in found["planted"])
    assert found["false_alarms"] == []
    report = (project / "out" / "report.html").read_text()
    assert report.count("<svg") >= len(found["planted"])
    assert all(planted["key"] in report for planted in found["planted"])
    assert "http" not in report.replace("http://www.w3.org", "")


@pytest.mark.spark
def test_a_run_keeps_running_until_it_is_told_to_stop(project: Path) -> None:
    command = [sys.executable, "-m", "millwheel.cli", "run", "counting_module:pipeline", "--store", "state"]
    process = subprocess.Popen(
        [*command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        text=True,
    )
    try:
        out = project / "out"
        while not any(out.glob("*.jsonl")):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert json.loads(text)["records_in"] == 30
