"""A folder that is followed: files that grow, files that come, lines that are half there."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.injectors import folder
from tests.input.reading import Follower, append, jsonl, opened, values, write

Files = mw.injectors.Files


def _follower(pattern: Path, **options: object) -> Follower:
    return Follower(opened(Files(pattern, timestamp="t", **options), follow=True))  # type: ignore[arg-type]


def test_lines_that_are_appended_are_read_once(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": 1}, {"t": 2}])
    follower = _follower(path)
    assert values(follower.look()) == [{"t": 1}, {"t": 2}]
    assert follower.look() == []
    append(path, '{"t": 3}\n')
    assert values(follower.look()) == [{"t": 3}]
    assert follower.look() == []


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"t": 1}\n{"t"')
    follower = _follower(path)
    assert values(follower.look()) == [{"t": 1}]
    append(path, ": 2, ")
    assert follower.look() == []
    append(path, '"v": 3}')
    assert follower.look() == []
    append(path, '\n{"t": 4}\n{')
    assert values(follower.look()) == [{"t": 2, "v": 3}, {"t": 4}]


def test_a_first_line_that_is_half_there_is_no_partition_yet(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"t": 1')
    follower = _follower(path)
    assert dict(follower.injector.poll()) == {}
    append(path, "}\n")
    assert values(follower.look()) == [{"t": 1}]


def test_a_half_written_line_longer_than_what_is_looked_at_waits_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"t": 1}\n{"t": 2, "v": "' + "x" * 300_000)
    follower = _follower(path)
    assert values(follower.look()) == [{"t": 1}]
    append(path, "y" * 200_000 + '"}\n')
    (record,) = follower.look()
    assert len(record.value["v"]) == 500_000


def test_a_half_written_character_waits_for_the_rest(tmp_path: Path) -> None:
    line = '{"t": 1, "v": "é"}\n'.encode()
    path = write(tmp_path / "a.jsonl", line[:-4])
    follower = _follower(path)
    assert follower.look() == []
    with open(path, "ab") as file:
        file.write(line[-4:])
    assert values(follower.look()) == [{"t": 1, "v": "é"}]


def test_new_files_are_found(tmp_path: Path) -> None:
    follower = _follower(tmp_path / "*.jsonl")
    assert follower.look() == []
    jsonl(tmp_path / "b.jsonl", [{"t": 2}])
    assert values(follower.look()) == [{"t": 2}]
    jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    append(tmp_path / "b.jsonl", '{"t": 3}\n')
    assert sorted(record.timestamp for record in follower.look()) == [1, 3]


def test_a_folder_of_many_files_is_looked_at_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    follower = _follower(tmp_path / "*.jsonl")
    monkeypatch.setattr(folder, "MANY", 0)
    monkeypatch.setattr(folder, "PAUSE", 1e9)
    assert values(follower.look()) == [{"t": 1}]
    jsonl(tmp_path / "b.jsonl", [{"t": 2}])
    assert follower.look() == []
    monkeypatch.setattr(folder.time, "monotonic", lambda: float("inf"))
    assert values(follower.look()) == [{"t": 2}]


def test_an_empty_file_that_is_filled_later_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "")
    follower = _follower(path)
    assert follower.look() == []
    append(path, '{"t": 1}\n')
    assert values(follower.look()) == [{"t": 1}]


def test_a_csv_file_that_grows_keeps_its_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "t,v")
    follower = _follower(path)
    assert follower.look() == []
    append(path, "\n1,a\n2")
    assert values(follower.look()) == [{"t": "1", "v": "a"}]
    append(path, ",b\n")
    assert values(follower.look()) == [{"t": "2", "v": "b"}]


def test_a_finished_gzip_file_that_appears_is_read_once(tmp_path: Path) -> None:
    follower = _follower(tmp_path / "*.gz")
    jsonl(tmp_path / "a.jsonl.gz", [{"t": 1}, {"t": 2}])
    assert values(follower.look()) == [{"t": 1}, {"t": 2}]
    assert follower.look() == []


def test_a_gzip_file_that_grows_gives_no_line_twice_or_says_that_it_cannot(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl.gz", [{"t": 1}, {"t": 2}])
    follower = _follower(path)
    assert values(follower.look()) == [{"t": 1}, {"t": 2}]
    with open(path, "ab") as file:
        file.write(gzip.compress(b'{"t": 3}\n'))
    try:
        found = values(follower.look())
    except mw.InputError:
        return
    assert found == [{"t": 3}]


def test_a_file_that_shrank_is_an_error_that_says_by_how_much(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"t": 1}\n{"t": 2}\n')
    follower = _follower(path)
    follower.look()
    write(path, '{"t": 3}\n')
    with pytest.raises(mw.InputError, match=r"a\.jsonl shrank from 18 to 9 bytes.*append to a log"):
        follower.look()


def test_a_file_that_is_removed_after_it_was_read_is_no_error(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    follower = _follower(tmp_path / "*.jsonl")
    follower.look()
    path.unlink()
    jsonl(tmp_path / "b.jsonl", [{"t": 2}])
    assert values(follower.look()) == [{"t": 2}]


def test_a_run_that_ends_by_itself_reads_what_was_there_when_it_began(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    follower = Follower(opened(Files(tmp_path / "*.jsonl", timestamp="t"), follow=False))
    assert values(follower.look()) == [{"t": 1}]
    append(path, '{"t": 2}\n')
    jsonl(tmp_path / "b.jsonl", [{"t": 3}])
    assert follower.look() == []


def test_follow_as_an_option_beats_how_the_pipeline_is_run(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    for option, follow in ((True, False), (False, True)):
        injector = opened(Files(path, timestamp="t", follow=option), follow=follow)
        assert injector.bounded is not option
