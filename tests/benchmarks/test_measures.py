"""What the benchmarks compute from what they saw; and that the pieces run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import counted, data, growth, guarantees, latency, path, profile, recovery, sweeps
from benchmarks.__main__ import NAMES, catalogue, main
from benchmarks.pace import Pace
from benchmarks.pipelines import windows


@pytest.mark.parametrize("name", [None, *NAMES])
def test_every_benchmark_has_its_help(
    name: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", *([name] if name else []), "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "--quick" in capsys.readouterr().out


def test_every_benchmark_is_in_the_catalogue_with_what_it_measures() -> None:
    assert tuple(catalogue()) == NAMES
    assert all(catalogue().values())


def test_a_pace_leaves_out_the_start() -> None:
    pace = Pace([(0.0, 0), (10.0, 1_000), (11.0, 2_000), (13.0, 4_000)])
    assert pace.rate(first=1_000) == 1_000
    assert pace.rate(first=9_000) == pytest.approx(4_000 / 13)


def test_a_run_that_slows_down_shows_in_its_tenths() -> None:
    points = [(0.0, 0)]
    for number in range(1, 101):
        points.append((points[-1][0] + (1.0 if number <= 50 else 2.0), number * 1_000_000))
    at, costs = growth.tenths(Pace(points))
    assert costs == [1.0] * 5 + [2.0] * 5
    assert at[-1] == 100_000_000


def test_a_stamp_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "0-1.stamps").write_text("7 1000000 1250000\n8 1000000 1")
    assert latency.read_stamped(tmp_path) == {7: 0.25}


def test_the_histogram_of_figure_13_has_every_record() -> None:
    assert guarantees.histogram([3.0, 4.9, 5.0, 12.0]) == {"0": 2, "5": 1, "10": 1}


@pytest.mark.parametrize(
    ("path", "function", "part"),
    [
        ("/any/millwheel/worker/route.py", "_keys", "extract"),
        ("/any/millwheel/worker/route.py", "send", "route"),
        ("/any/millwheel/store/lmdb/lmdb_snapshot.py", "get_each", "load"),
        ("/any/millwheel/store/lmdb/lmdb_store.py", "write", "write"),
        ("/any/millwheel/sinks/jsonlines.py", "write_columns", "write"),
        ("/any/millwheel/master/journal.py", "commit", "commit"),
        ("/any/benchmarks/pipelines/windows.py", "process_record", "user code"),
        ("/any/millwheel/worker/keyed.py", "run", "around it"),
        ("/any/millwheel/worker/context.py", "encoded", "encode"),
        ("/any/millwheel/injectors/json_fields.py", "read", "decode"),
        ("/any/millwheel/model/codec.py", "pack", None),
        ("/usr/lib/python3/json.py", "loads", None),
    ],
)
def test_a_function_belongs_to_a_part(path: str, function: str, part: str | None) -> None:
    assert profile.part_of(path, function) == part


def test_a_commit_is_told_from_the_writes_before_it() -> None:
    assert profile.part_of("millwheel/store/lmdb/lmdb_store.py", "write", "    txn.commit()\n") == "commit"


def test_every_place_that_a_part_names_is_there() -> None:
    root = Path(profile.__file__).parent.parent
    for place in (place for places in profile.PARTS.values() for place in places):
        name, _, function = place.partition(":")
        path = root / name if name.startswith("benchmarks") else root / "millwheel" / name
        assert path.exists(), place
        assert not function or f"def {function}(" in path.read_text(), place


def test_the_parts_of_a_profile_are_the_whole(tmp_path: Path) -> None:
    source = data.generate(tmp_path / "in", keys=200, records=20_000, files=2)
    found = profile.profile(source, tmp_path / "run")
    assert found["records"] == 20_001
    assert counted.of_computation(tmp_path / "run" / "out") == counted.truth(source)
    assert found["cpu"]["user code"] > 0
    assert sum(found["cpu"].values()) <= found["cpu_microseconds"] * 1.05


def test_windows_of_operators_are_the_right_ones_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = data.generate(tmp_path / "in", keys=200, records=20_000, files=2)
    monkeypatch.setattr(windows, "pipeline", windows.operators)
    profile.profile(source, tmp_path / "run")
    assert counted.of_operators(tmp_path / "run" / "out") == counted.truth(source)


@pytest.mark.spark
def test_a_point_of_a_sweep_has_every_key_before_it_counts(spark: SparkSession, tmp_path: Path) -> None:
    found = sweeps.measure(spark, sweeps.Point(200, 3_000, keys=200, levels=2), tmp_path / "run")
    assert found["ended"]
    assert found["records_per_second"] > 0
    assert found["store_bytes"] > 0


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_driver_is_followed_by_new_output(tmp_path: Path) -> None:
    found = recovery.measure(tmp_path / "work", keys=500, rounds=1)
    assert len(found["seconds"]) == 1
    assert found["median"] > 0


@pytest.mark.parametrize("name", path.ALTERNATIVES)
def test_the_plain_ways_of_a_path_are_taken_and_run(name: str, tmp_path: Path) -> None:
    job = path.Job(path.Case(10, 20), tmp_path / "in")
    with path.ALTERNATIVES[name].applied():
        assert job.run() > 0
