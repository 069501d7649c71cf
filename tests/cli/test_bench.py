"""``millwheel bench``, called as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millwheel.cli import bench, main


def test_help_helps_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert "example: millwheel bench" in capsys.readouterr().out


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert {"field", "guarantees", "lag", "sweeps", "recovery", "growth"} <= names.keys()
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(names)


@pytest.mark.parametrize(
    ("arguments", "message"), [(["speed"], "there is no benchmark 'speed'"), ([], "name a benchmark")]
)
def test_a_wrong_name_says_which_there_are(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "throughput" in said


def test_where_there_is_no_checkout_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "field", "--checkout", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"there are no benchmarks in {tmp_path}" in said
    assert "checkout" in said


def test_an_installed_package_without_benchmarks_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "site-packages" / "millwheel" / "bench.py"))
    assert main(["bench", "field"]) == 1
    assert "they are in the source tree" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "NEEDED", ("no_such_package",))
    assert main(["bench", "lag"]) == 1
    assert "need no_such_package: pip install" in capsys.readouterr().err


def test_the_result_is_printed_as_json_and_the_table_apart(capfd: pytest.CaptureFixture[str]) -> None:
    for name in bench.NEEDED:
        pytest.importorskip(name)
    assert main(["bench", "profile", "--quick", "--json"]) == 0
    out, error = capfd.readouterr()
    assert json.loads(out)["quick"] is True
    assert "user code" in error
