"""The peers of the field give the right result, and all are timed in one way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import counted, data, field, field_result, results, tables
from benchmarks.peers import environments, systems


@pytest.fixture
def source(tmp_path: Path) -> data.Input:
    return data.generate(tmp_path / "in", keys=50, records=6_000, files=3)


def _system(name: str) -> systems.System:
    return next(system for system in systems.SYSTEMS if system.name == name)


@pytest.mark.parametrize("name", ["plain loop", "plain loop, by window"])
def test_the_plain_loop_counts_every_key_in_one_of_its_processes(
    name: str, source: data.Input, tmp_path: Path
) -> None:
    counts, seconds = systems.run(_system(name), source, tmp_path / "run", 0)
    assert counts == counted.truth(source)
    assert seconds > 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("Bytewax", environments.BYTEWAX),
        ("PyFlink", environments.FLINK),
        ("Flink SQL", environments.FLINK),
        ("Pathway", environments.PATHWAY),
    ],
)
@pytest.mark.slow
def test_a_peer_that_is_installed_gives_the_same_windows(
    name: str, environment: environments.Environment, source: data.Input, tmp_path: Path
) -> None:
    if not environments.is_there(environment):
        pytest.skip(f"{name} is not installed: python -m benchmarks.peers.environments")
    counts, _ = systems.run(_system(name), source, tmp_path / "run", 0)
    assert counts == counted.truth(source)


def test_a_window_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    line = '{"key": "query-7", "window": 1, "count": 2}\n'
    path.write_text(line * 2)
    with pytest.raises(AssertionError, match="query-7 from second 1 was emitted twice"):
        counted.of_lines([path])
    path.write_text(line)
    once = counted.of_lines([path])
    assert len(once) == 1
    path.write_text(line.replace("2}", "3}") + line.replace("query-7", "~"))
    assert counted.of_lines([path]) != once


def test_a_system_that_fails_says_what_it_said(source: data.Input, tmp_path: Path) -> None:
    broken = systems.System(
        "broken", lambda *_: [["python3", "-c", "raise SystemExit('no such thing')"]], lambda _: {}, "none"
    )  # type: ignore[arg-type,return-value]
    for _ in range(2):  # what the first left behind is not in the way of the second
        with pytest.raises(systems.Failed, match=r"broken failed with \[1\]: no such thing"):
            systems.run(broken, source, tmp_path / "run", 0)


def test_a_process_that_ends_later_than_its_run_does_not_fail_it(source: data.Input, tmp_path: Path) -> None:
    late = "import pathlib, time\nfor n in range(300): pathlib.Path(f'{n}').touch(); time.sleep(0.002)"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {late!r}], cwd=sys.argv[1])"
    ends = systems.System(
        "late", lambda _, work, __: [["python3", "-c", program, str(work)]], lambda _: None, "none"
    )
    systems.run(ends, source, tmp_path / "run", 0)
    assert not (tmp_path / "run").exists()


def test_rate_and_start_up_are_the_line_through_a_short_and_a_long_run() -> None:
    # Five seconds to start, then 10,000 records in a second.
    rate, start = field.line(field.Load(long=200_000, short=50_000), short=10.0, long=25.0)
    assert (rate, start) == (10_000, 5.0)


def test_noise_that_makes_the_short_run_longer_does_not_make_a_rate_negative() -> None:
    rate, start = field.line(field.Load(long=2_000, short=1_000), short=4.0, long=2.0)
    assert (rate, start) == (1_000, 0.0)


def test_the_rate_of_several_rounds_is_that_of_the_difference_in_the_middle(tmp_path: Path) -> None:
    case = field.CaseRun(field.Case(10, field.Load(long=200_000, short=50_000), {}), tmp_path)
    # Five seconds to start, and 10,000 records in a second; one short run and one long run began late.
    case.turns["millwheel"] = [(10.0, 25.0), (23.0, 25.0), (10.0, 38.0), (10.0, 25.0)]
    case.same["millwheel"] = True
    found = case.found()["millwheel"]
    assert found["records_per_second"] == 10_000
    assert found["start_up_seconds"] == 5.0
    assert found["rates"] == [10_000, 75_000, 5_357, 10_000]


def test_an_environment_without_its_python_says_which_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLWHEEL_PEERS", str(tmp_path))
    with pytest.raises(environments.Unavailable, match=r"needs one of Python 1\.0"):
        environments.ensure(environments.Environment("ancient", ("nothing",), ("1.0",)))


def test_an_installation_that_fails_gives_the_reason_without_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "import sys; sys.exit('ERROR: nothing found at https://index.example/simple')"
    with pytest.raises(environments.Unavailable) as failed:
        environments.call(["python3", "-c", said])
    assert str(failed.value) == "ERROR: nothing found at …"


def test_a_system_that_fails_or_is_not_there_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: object) -> systems.Commands:
        raise environments.Unavailable("no wheel")

    def broken(*_: object) -> systems.Commands:
        return [["python3", "-c", "raise SystemExit('no such thing')"]]

    plain = _system("plain loop")
    made = [systems.System(n, p, plain.read, "none") for n, p in (("missing", missing), ("broken", broken))]
    monkeypatch.setattr(field, "SYSTEMS", (*made, plain))
    _small_field(monkeypatch, tmp_path)
    result = field.run(quick=True, rounds=2)
    assert result["absent"] == {"missing": "not available: no wheel"}
    assert len(result["failures"]) == 2
    (case,) = result["cases"]
    assert list(case["systems"]) == ["plain loop"]
    assert case["systems"]["plain loop"]["same_windows"]


def _small_field(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(field, "QUICK_CASES", (field.Case(50, field.Load(4_000, 2_000), {}),))
    monkeypatch.setattr(results, "FOLDER", folder)
    monkeypatch.setattr(field.chart, "bars", lambda *_, **__: None)


def test_a_run_of_some_systems_keeps_the_figures_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _small_field(monkeypatch, tmp_path)
    field.run(quick=True, rounds=1, only=["plain loop", "plain loop, by window"])
    path = tmp_path / "field-quick.json"
    first = json.loads(path.read_text())
    path.write_text(path.read_text().replace(first["revision"], "an earlier one"))
    field.run(quick=True, rounds=2, only=["plain loop"])
    second = json.loads(path.read_text())
    before, after = first["cases"][0]["systems"], second["cases"][0]["systems"]
    assert list(after) == ["plain loop", "plain loop, by window"]
    assert len(after["plain loop"]["rates"]) == 2
    assert after["plain loop, by window"] == before["plain loop, by window"]
    revisions = {name: moment["revision"] for name, moment in second["measured"].items()}
    assert revisions == {"plain loop": first["revision"], "plain loop, by window": "an earlier one"}
    assert "revision an earlier one): plain loop, by window." in tables.table("field", second)


def test_ratios_are_those_of_the_merged_figures() -> None:
    def result(**rates: int) -> dict[str, Any]:
        systems = {name.replace("_", " "): {"records_per_second": rate} for name, rate in rates.items()}
        measured = {name: {"revision": str(rates)} for name in systems}
        cases = [{"keys": 10, "systems": systems}]
        return {"quick": False, "cases": cases, "measured": measured, "absent": {}, "failures": []}

    old = field_result.merged(result(millwheel=300, plain_loop=500, Bytewax=100), None)
    old["absent"] = {"PyFlink": "no wheel"}
    old["failures"] = [{"system": "millwheel", "said": "a"}, {"system": "Bytewax", "said": "b"}]
    found = field_result.merged(result(millwheel=400), old)
    (case,) = found["cases"]
    assert {name: part.get("millwheel_is") for name, part in case["systems"].items()} == {
        "millwheel": None,
        "plain loop": 0.8,
        "Bytewax": 4.0,
    }
    assert case["systems"]["plain loop"]["passed"]
    assert found["absent"] == {"PyFlink": "no wheel"}
    assert found["failures"] == [{"system": "Bytewax", "said": "b"}]


def test_figures_of_another_machine_are_not_merged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    (tmp_path / "field.json").write_text('{"machine": {"cores": 999, "memory_gb": 1}, "cases": []}')
    with pytest.raises(SystemExit, match="measured on another machine"):
        field_result.recorded(quick=False)


def test_a_system_that_the_field_does_not_have_is_named() -> None:
    with pytest.raises(SystemExit, match="no system 'Plain loop'; it has millwheel, millwheel, operators"):
        field.run(quick=True, only=["Plain loop"])
