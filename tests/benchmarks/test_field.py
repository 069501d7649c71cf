"""The peers of the field give the right result, and all are timed in one way."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import data, field
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
    assert counts == source.truth()
    assert seconds > 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "environment"), [("Bytewax", environments.BYTEWAX), ("PyFlink", environments.FLINK)]
)
@pytest.mark.slow
def test_a_peer_that_is_installed_gives_the_same_windows(
    name: str, environment: environments.Environment, source: data.Input, tmp_path: Path
) -> None:
    if not environments.is_there(environment):
        pytest.skip(f"{name} is not installed: python -m benchmarks.peers.environments")
    counts, _ = systems.run(_system(name), source, tmp_path / "run", 0)
    assert counts == source.truth()


def test_a_window_that_comes_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    path.write_text('{"key": "a", "window": 1, "count": 2}\n' * 2)
    with pytest.raises(AssertionError, match="emitted twice"):
        data.read_windows([path])


def test_a_system_that_fails_says_what_it_said(source: data.Input, tmp_path: Path) -> None:
    broken = systems.System(
        "broken", lambda *_: [["python3", "-c", "raise SystemExit('no such thing')"]], lambda _: {}, "none"
    )  # type: ignore[arg-type,return-value]
    for _ in range(2):  # what the first left behind is not in the way of the second
        with pytest.raises(systems.Failed, match="broken failed: no such thing"):
            systems.run(broken, source, tmp_path / "run", 0)


def test_rate_and_start_up_are_the_line_through_a_short_and_a_long_run() -> None:
    # Five seconds to start, then 10,000 records in a second.
    rate, start = field.line(field.Load(long=200_000, short=50_000), short=10.0, long=25.0)
    assert (rate, start) == (10_000, 5.0)


def test_noise_that_makes_the_short_run_longer_does_not_make_a_rate_negative() -> None:
    rate, start = field.line(field.Load(long=2_000, short=1_000), short=4.0, long=2.0)
    assert (rate, start) == (1_000, 0.0)


def test_the_rate_of_several_rounds_is_that_of_the_difference_in_the_middle(tmp_path: Path) -> None:
    case = field._Case(field.Case(10, field.Load(long=200_000, short=50_000), {}), tmp_path)
    # Five seconds to start, and 10,000 records in a second; one short run and one long run began late.
    case._turns["millwheel"] = [(10.0, 25.0), (23.0, 25.0), (10.0, 38.0), (10.0, 25.0)]
    case._same["millwheel"] = True
    found = case.found(quick=False, place=0)["systems"]["millwheel"]
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
    monkeypatch.setattr(field, "QUICK_CASES", (field.Case(50, field.Load(4_000, 2_000), {}),))
    monkeypatch.setattr(field.results, "FOLDER", tmp_path)
    monkeypatch.setattr(field.chart, "bars", lambda *_, **__: None)
    result = field.run(quick=True, rounds=2)
    assert result["absent"] == {"missing": "not available: no wheel"}
    assert len(result["failures"]) == 2
    (case,) = result["cases"]
    assert list(case["systems"]) == ["plain loop"]
    assert case["systems"]["plain loop"]["same_windows"]
