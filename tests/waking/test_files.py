"""A folder that is followed is watched: a change is reported, and costs a look at one file."""

from __future__ import annotations

import gzip
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.injectors import file_identity, folder, inotify
from tests.input.reading import Follower, append, jsonl, opened, values

Files = mw.injectors.Files

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")

_PATIENCE = 60.0


class Watched(Follower):
    """Reads what a watched folder has, after each call of the injector."""

    def __init__(self, pattern: Path) -> None:
        injector = opened(Files(pattern, timestamp="t"), follow=True)
        super().__init__(injector)
        self.injector = injector
        self.called = threading.Event()
        self.watched = injector.notify(self.called.set)

    def after_a_call(self, count: int = 1) -> list[object]:
        """The next values, waited for by calls alone."""
        found: list[object] = []
        while len(found) < count:
            assert self.called.wait(_PATIENCE), "the injector did not call"
            self.called.clear()
            found += values(self.look())
        return found


@pytest.fixture
def no_looks_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first, no look at all files comes by itself."""
    monkeypatch.setattr(folder, "ALL_EVERY", 1e9)


@pytest.fixture
def watched(tmp_path: Path, no_looks_at_all: None) -> Iterator[Watched]:
    found = Watched(tmp_path / "*.jsonl")
    assert found.watched
    assert found.look() == []
    yield found
    found.injector.close()


def test_files_that_come_grow_are_renamed_and_replaced_are_reported(watched: Watched, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    assert watched.after_a_call() == [{"t": 1}]
    append(path, '{"t": 2}\n')
    assert watched.after_a_call() == [{"t": 2}]
    (tmp_path / ".b").write_text('{"t": 3}\n')
    os.rename(tmp_path / ".b", tmp_path / "b.jsonl")
    assert watched.after_a_call() == [{"t": 3}]
    os.rename(path, tmp_path / "a.1.jsonl")  # rotated: it is the same file
    jsonl(path, [{"t": 4}])
    assert watched.after_a_call() == [{"t": 4}]
    append(tmp_path / "a.1.jsonl", '{"t": 5}\n')
    assert watched.after_a_call() == [{"t": 5}]


def test_what_does_not_match_the_pattern_calls_nobody(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("x")
    (tmp_path / ".staged").write_text("x")
    jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    assert watched.called.wait(_PATIENCE)  # events come in order
    watch = watched.injector.folder.watch
    assert watch is not None
    assert watch.changes() == {str(tmp_path / "a.jsonl")}


def test_a_change_costs_a_look_at_one_file(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        jsonl(tmp_path / f"{number}.jsonl", [{"t": number}])
    watched.after_a_call(50)
    watched.called.clear()
    looked: list[str] = []
    stat = folder.stat_file
    monkeypatch.setattr(folder, "stat_file", lambda path: looked.append(path) or stat(path))
    assert watched.look() == []
    append(tmp_path / "7.jsonl", '{"t": 100}\n')
    assert watched.after_a_call() == [{"t": 100}]
    assert set(looked) <= {str(tmp_path / "7.jsonl"), str(tmp_path / "49.jsonl")}  # the last event was its


def test_a_packed_file_is_recognised(watched: Watched, tmp_path: Path) -> None:
    both = Watched(tmp_path / "a*")
    path = jsonl(tmp_path / "a.jsonl", [{"t": n} for n in range(100)])
    both.after_a_call(100)
    both.injector.commit(both.injector.poll())
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as packed:
        packed.write(path.read_bytes())
    path.unlink()
    jsonl(tmp_path / "ab.jsonl", [{"t": 1000}])
    assert both.after_a_call() == [{"t": 1000}]
    both.injector.close()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_that_is_written_elsewhere_is_polled(
    link: Callable[[Path, Path], None], watched: Watched, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = jsonl(tmp_path / "elsewhere" / "log", [{"t": 1}])
    link(target, tmp_path / "a.jsonl")
    assert watched.after_a_call() == [{"t": 1}]
    append(target, '{"t": 2}\n')
    assert watched.after_a_call() == [{"t": 2}]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_and_a_link_to_it_that_come_together_are_read_once(
    link: Callable[[Path, Path], None], watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    link(target, tmp_path / "current.jsonl")
    both = {str(target), str(tmp_path / "current.jsonl")}
    monkeypatch.setattr(inotify.Watch, "changes", lambda watch: both)
    assert values(watched.look()) == [{"t": 1}]


def test_a_folder_that_is_removed_and_made_again_is_polled(no_looks_at_all: None, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    watched = Watched(tmp_path / "in" / "*.jsonl")
    assert watched.look() == []
    (tmp_path / "in").rmdir()
    (tmp_path / "in").mkdir()
    jsonl(tmp_path / "in" / "a.jsonl", [{"t": 1}])
    assert watched.after_a_call() == [{"t": 1}]
    watched.injector.close()


@pytest.mark.parametrize("pattern", ["*/a.jsonl", "missing/a.jsonl"])
def test_a_folder_that_cannot_be_watched_is_polled(pattern: str, tmp_path: Path) -> None:
    assert not Watched(tmp_path / pattern).watched


def test_a_file_system_of_the_network_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "LOCAL", set())
    assert not Watched(tmp_path / "*.jsonl").watched


def test_an_injector_that_is_watched_can_be_shipped(watched: Watched) -> None:
    pickle.loads(pickle.dumps(watched.injector))


def test_many_files_do_not_make_the_look_at_one_of_them_longer(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        jsonl(tmp_path / f"{number:02d}.jsonl", [{"t": number}])
    watched.after_a_call(50)
    append(tmp_path / "07.jsonl", '{"t": 100}\n')
    assert watched.after_a_call() == [{"t": 100}]  # from here on, files are found by their paths
    named: list[str] = []
    name = file_identity.Identity.name.fget
    monkeypatch.setattr(
        file_identity.Identity,
        "name",
        property(lambda identity: named.append(identity.path) or name(identity)),
    )
    append(tmp_path / "09.jsonl", '{"t": 101}\n')
    jsonl(tmp_path / "new.jsonl", [{"t": 102}])
    assert watched.after_a_call(2) == [{"t": 101}, {"t": 102}]
    assert set(named) <= {str(tmp_path / f"{which}.jsonl") for which in ("07", "09", "new")}
