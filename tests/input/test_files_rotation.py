"""Log files that are renamed, packed, copied, truncated and written anew: no line is read twice or lost."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
import zstandard

import millwheel as mw
from millwheel.injectors import folder, lines
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.input.reading import Follower, append, jsonl, opened, values, write
from tests.store.driving import run

Files = mw.injectors.Files

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
    ".snappy": lambda data: bytes(cramjam.snappy.compress(data)),
}


def _follower(pattern: Path, known: Follower | None = None, **options: Any) -> Follower:
    """One that looks for the first time, or goes on where another one stopped, as after a restart."""
    follower = Follower(opened(Files(pattern, timestamp="t", **options), follow=True))
    if known is not None:
        follower.offsets = dict(known.offsets)
        follower.injector.commit(known.offsets)
    return follower


@pytest.fixture(params=["one driver", "a driver for each look"])
def looks(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Looks at all files of the folder; under each way of running."""
    state: dict[str, Follower] = {}

    def look() -> list[Any]:
        known = state.get("last")
        if known is None or request.param != "one driver":
            known = _follower(tmp_path / "*", known)
        state["last"] = known
        found = values(known.look())
        known.injector.commit(known.offsets)
        return found

    return look


def test_a_file_that_is_renamed_is_not_read_twice(looks: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}, {"t": 2}])
    assert looks() == [{"t": 1}, {"t": 2}]
    path.rename(tmp_path / "app.log.1")
    jsonl(path, [{"t": 3}])
    assert looks() == [{"t": 3}]
    (tmp_path / "app.log.1").rename(tmp_path / "app.log.2")
    path.rename(tmp_path / "app.log.1")
    jsonl(path, [{"t": 4}])
    assert looks() == [{"t": 4}]
    assert looks() == []


@pytest.mark.parametrize("link", ["symbolic", "hard"])
@pytest.mark.parametrize("names", [("app.log", "zzz.log"), ("app.log", "aaa.log")])
def test_one_file_under_two_names_is_read_once(
    looks: Any, tmp_path: Path, link: str, names: tuple[str, str]
) -> None:
    path = jsonl(tmp_path / names[0], [{"t": 1}, {"t": 2}])
    other = tmp_path / names[1]
    if link == "symbolic":
        other.symlink_to(path)
    else:
        other.hardlink_to(path)
    assert looks() == [{"t": 1}, {"t": 2}]
    append(path, '{"t": 3}\n')
    assert looks() == [{"t": 3}]
    jsonl(tmp_path / "next.log", [{"t": 4}])
    other.unlink()
    if link == "symbolic":
        other.symlink_to(tmp_path / "next.log")  # as a link "current" is moved at each rotation
    assert looks() == [{"t": 4}]
    path.unlink() if link == "symbolic" else path.rename(other)
    append(tmp_path / "next.log", '{"t": 5}\n')
    assert looks() == [{"t": 5}]


def test_a_run_reads_a_file_under_two_names_once(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl.gz", [{"t": 1}, {"t": 2}])
    (tmp_path / "b.jsonl.gz").symlink_to(path)
    p = mw.Pipeline("links")
    p.inject("in", Files(tmp_path / "*", timestamp="t"))
    assert run(p, MemoryStore()).records_in == 2


def test_what_is_written_to_a_file_after_it_was_renamed_is_read(looks: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}])
    assert looks() == [{"t": 1}]
    path.rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log.1", '{"t": 2}\n')
    jsonl(path, [{"t": 3}])
    assert sorted(value["t"] for value in looks()) == [2, 3]


def _rotate(path: Path) -> None:
    """Renames a log and its older one, as logrotate does, and begins a new one."""
    if (older := path.with_suffix(".log.1")).exists():
        older.rename(path.with_suffix(".log.2"))
    path.rename(older)
    jsonl(path, [{"t": 3}, {"t": 4}, {"t": 5}])


def _once(path: Path) -> Callable[[str], None]:
    """Rotates a log when it is called with its path for the first time."""
    rotated = False

    def rotate(name: str) -> None:
        nonlocal rotated
        if not rotated and name == str(path):
            rotated = True
            _rotate(path)

    return rotate


@pytest.mark.parametrize("begun", [False, True])
def test_a_log_that_is_rotated_during_a_scan_is_read_once(
    begun: bool, looks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}])
    seen = looks() if begun else []
    append(path, '{"t": 2}\n')
    stat_file, rotate = folder.stat_file, _once(path)

    def stat_before(name: str) -> os.stat_result | None:
        found = stat_file(name)
        rotate(name)
        return found

    monkeypatch.setattr(folder, "stat_file", stat_before)
    seen += [*looks(), *looks()]
    assert sorted(value["t"] for value in seen) == [1, 2, 3, 4, 5]


def test_a_log_that_is_rotated_while_a_task_opens_it_is_read_once(
    looks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jsonl(tmp_path / "app.log.1", [{"t": 1}])
    path = jsonl(tmp_path / "app.log", [{"t": 2}])
    open_piece, rotate = lines.open_piece, _once(path)

    def open_after(name: str, *piece: Any) -> Any:
        rotate(name)
        return open_piece(name, *piece)

    monkeypatch.setattr(lines, "open_piece", open_after)
    assert sorted(value["t"] for value in [*looks(), *looks()]) == [1, 2, 3, 4, 5]


def test_files_that_begin_alike_are_told_apart_when_they_are_rotated(looks: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 0}, {"t": 1}])
    assert len(looks()) == 2
    path.rename(tmp_path / "app.log.1")
    jsonl(path, [{"t": 0}, {"t": 2}, {"t": 3}])
    assert looks() == [{"t": 0}, {"t": 2}, {"t": 3}]


@pytest.mark.parametrize("end", sorted(PACKERS))
def test_a_file_that_is_packed_after_it_was_read_is_not_read_again(
    looks: Any, tmp_path: Path, end: str
) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}, {"t": 2}])
    assert len(looks()) == 2
    (tmp_path / f"app.log.1{end}").write_bytes(PACKERS[end](path.read_bytes()))
    path.unlink()
    jsonl(tmp_path / "new.log", [{"t": 3}])
    assert looks() == [{"t": 3}]
    assert looks() == []


def test_a_file_that_is_packed_before_it_was_read_to_its_end_is_an_error(looks: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}])
    assert len(looks()) == 1
    append(path, '{"t": 2}\n' * 3)
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    with pytest.raises(mw.InputError, match=r"app\.log was packed to .* before .* delaycompress"):
        looks()


@pytest.mark.parametrize("end", [".gz", ".bz2", ".zst"])
def test_a_file_is_not_read_again_while_it_is_being_packed(looks: Any, tmp_path: Path, end: str) -> None:
    path = jsonl(tmp_path / "app.log.1", [{"t": n} for n in range(1_000)])
    assert len(looks()) == 1_000
    packed = PACKERS[end](path.read_bytes())
    copy = tmp_path / f"app.log.1{end}"
    for written in (0, 5, len(packed) // 2, len(packed)):
        copy.write_bytes(packed[:written])
        assert looks() == []
    path.unlink()
    assert looks() == []
    jsonl(tmp_path / "app.log", [{"t": 3}])
    assert looks() == [{"t": 3}]


def test_a_packed_file_beside_one_of_other_content_is_read(looks: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}])
    assert looks() == [{"t": 1}]
    (tmp_path / "app.log.gz").write_bytes(gzip.compress(b'{"t": 2}\n'))
    assert looks() == [{"t": 2}]
    (tmp_path / "app.log.bz2").write_bytes(path.read_bytes())
    with pytest.raises(mw.InputError, match=r"app\.log\.bz2 cannot be read"):
        looks()


def test_a_copy_under_the_same_name_is_the_same_file(looks: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}])
    assert looks() == [{"t": 1}]
    shutil.copy(path, tmp_path.parent / "kept.log")
    append(tmp_path.parent / "kept.log", '{"t": 2}\n')
    os.replace(tmp_path.parent / "kept.log", path)
    assert looks() == [{"t": 2}]


def test_a_file_that_was_written_anew_in_place_is_an_error_that_names_it(looks: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}])
    looks()
    with open(path, "r+b") as file:
        file.write(b'{"t": 7, "longer": "than before"}\n')
    with pytest.raises(mw.InputError, match=r"app\.log changed: it does not begin with the same bytes"):
        looks()


def test_a_file_that_was_truncated_is_an_error_that_names_it(looks: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}, {"t": 2}])
    looks()
    os.truncate(path, 9)
    with pytest.raises(mw.InputError, match=r"app\.log shrank from 18 to 9 bytes"):
        looks()


def test_a_csv_file_is_no_partition_before_it_has_a_row(looks: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "t,v\n")
    assert looks() == []
    append(path, "1,a\n")
    assert looks() == [{"t": "1", "v": "a"}]
    path.rename(tmp_path / "a.csv.1.csv")
    write(path, "t,v\n2,b\n")
    assert looks() == [{"t": "2", "v": "b"}]


def test_a_task_finds_a_file_that_was_renamed_after_the_epoch_was_planned(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}, {"t": 2}])
    injector = opened(Files(tmp_path / "app.log*", timestamp="t"))
    ((partition, end),) = injector.poll().items()
    path.rename(tmp_path / "app.log.1")
    jsonl(path, [{"t": 3}])
    assert values(injector.read(partition, None, end)) == [{"t": 1}, {"t": 2}]
    assert values(injector.read(partition, 9, end)) == [{"t": 2}]


def test_a_task_says_that_a_file_is_gone(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}, {"t": 2}])
    injector = opened(Files(tmp_path / "app.log*", timestamp="t"))
    ((partition, end),) = injector.poll().items()
    path.rename(tmp_path / "elsewhere.log")
    jsonl(path, [{"t": 3}])
    with pytest.raises(
        mw.InputError,
        match=r"app\.log was removed, or changed .* restore it .* every executor must see the files",
    ):
        list(injector.read(partition, 9, end))


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "app.log", [{"t": 1}, {"t": 2}])
    injector = opened(Files(path, timestamp="t"))
    ((partition, end),) = injector.poll().items()
    os.truncate(path, 9)
    with pytest.raises(mw.InputError, match=r"app\.log cannot be read \(it shrank below its 18 bytes"):
        list(injector.read(partition, None, end))


def test_a_pipeline_goes_on_over_a_rotation_between_two_runs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = jsonl(tmp_path / "in" / "app.log", [{"t": 1}, {"t": 2}])
    store, sink = MemoryStore(), mw.sinks.Collect()

    def pipeline() -> mw.Pipeline:
        p = mw.Pipeline("rotated")
        p.inject("in", Files(tmp_path / "in" / "app.log*", timestamp="t"))
        p.add(Echo(), name="C", inputs={"in": lambda record: "k"}, outputs=["out"])
        p.sink("out", sink)
        return p

    run(pipeline(), store)
    path.rename(tmp_path / "in" / "app.log.1")
    append(tmp_path / "in" / "app.log.1", '{"t": 3}\n')
    jsonl(path, [{"t": 4}])
    run(pipeline(), store)
    assert sorted(record.value["t"] for record in sink.records) == [1, 2, 3, 4]


def test_a_task_does_not_look_through_the_folder_for_a_file_that_is_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 10,000 files, that would make reading them quadratic."""
    jsonl(tmp_path / "app.log", [{"t": 1}])
    injector = opened(Files(tmp_path / "app.log*", timestamp="t"))
    ((partition, end),) = injector.poll().items()

    def listed(*arguments: Any) -> Any:
        raise AssertionError("the folder was listed")

    monkeypatch.setattr(os, "scandir", listed)
    monkeypatch.setattr(os, "listdir", listed)
    assert values(injector.read(partition, None, end)) == [{"t": 1}]
