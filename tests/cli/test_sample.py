"""``millwheel sample``: the same data everywhere, as the tutorials need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.cli import main
from millwheel.cli.sample import SAMPLES, write_sample
from tests.input.reading import opened, read_all

READ: dict[str, dict[str, dict[str, Any]]] = {
    "queries": {"queries": {"timestamp": "time", "id": "id"}},
    "clicks": {"clicks": {"timestamp": "at", "unit": "ms"}},
    "orders": {"orders": {"timestamp": "at"}, "payments": {"timestamp": "at"}},
    "taxi": {"rides": {"timestamp": "start", "unit": "iso", "id": "ride"}},
}
"""By sample and stream: how it is injected."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_the_same_each_time_and_can_be_injected(name: str, tmp_path: Path) -> None:
    written = write_sample(name, tmp_path / "one")
    write_sample(name, tmp_path / "two")
    for file in written:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    found = 0
    for stream, options in READ[name].items():
        injector = mw.injectors.Files(tmp_path / "one" / f"{stream}-*.jsonl", **options)
        records = read_all(opened(injector))
        assert all(1_600_000_000 < record.timestamp / mw.SECOND < 1_800_000_000 for record in records)
        times = [record.timestamp for record in records]
        assert times != sorted(times), "out of order, as logs are"
        found += len(records)
    assert found == sum(written.values()) > 100


def test_another_seed_gives_other_data(tmp_path: Path) -> None:
    write_sample("clicks", tmp_path / "one")
    write_sample("clicks", tmp_path / "two", seed=2)
    file = "clicks-1.jsonl"
    assert (tmp_path / "one" / file).read_bytes() != (tmp_path / "two" / file).read_bytes()


def test_the_command_names_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "queries", str(tmp_path / "logs")]) == 0
    assert f"{tmp_path / 'logs' / 'queries-1.jsonl'}: 2," in capsys.readouterr().out
    assert main(["sample", "queries", str(tmp_path / "logs"), "--json"]) == 0
    assert sum(json.loads(capsys.readouterr().out).values()) > 4_000


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sample", "--help"])
    assert "example: millwheel sample queries logs/" in capsys.readouterr().out


def test_a_name_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sample", "nothing", str(tmp_path)])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
    with pytest.raises(mw.MillWheelError, match="choose one of queries, clicks, orders, taxi"):
        write_sample("nothing", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["sample", "clicks", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err
