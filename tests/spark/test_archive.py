"""The archive of Spark's classes: made once, used by a Spark of ours, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyspark
import pytest

from millwheel.spark import class_archive, session
from millwheel.spark.class_archive import Archive


@pytest.fixture
def kept(tmp_path: Path) -> Archive:
    tmp_path.chmod(0o700)
    return Archive(tmp_path)


def _put(kept: Archive, content: bytes = b"classes") -> Path:
    made = kept.folder / "made"
    made.write_bytes(content)
    path = kept.folder / f"{kept.key}-{class_archive.file_hash(made)}.jsa"
    made.chmod(0o600)
    return made.rename(path)


def test_a_whole_archive_is_found(kept: Archive) -> None:
    path = _put(kept)
    assert kept.find() == path


@pytest.mark.parametrize("damage", [b"", b"class", b"klasses"], ids=["empty", "truncated", "changed"])
def test_a_damaged_archive_is_not_used(kept: Archive, damage: bytes) -> None:
    path = _put(kept)
    path.write_bytes(damage)
    assert kept.find() is None


def test_a_damaged_archive_is_removed_so_that_another_one_is_made(kept: Archive) -> None:
    _put(kept).write_bytes(b"klasses")
    kept.find()
    assert kept.is_missing()


def test_an_archive_that_others_may_write_is_not_used(kept: Archive) -> None:
    _put(kept).chmod(0o666)
    assert kept.find() is None


def test_a_folder_that_is_not_there_is_no_archive(tmp_path: Path) -> None:
    assert Archive(tmp_path / "nowhere").find() is None


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("where the folder is to be")
    assert Archive(tmp_path / "file" / "millwheel").make_later() is None


def test_while_one_process_makes_it_no_other_does(kept: Archive) -> None:
    with class_archive.alone(kept.folder / f"{kept.key}.lock") as mine:
        assert mine
        assert kept.make(lambda made: None) is None
        assert kept.make_later() is None


def test_after_a_failure_it_is_not_tried_at_every_start(kept: Archive) -> None:
    assert kept.make(lambda made: None) is None
    assert kept.make_later() is None
    assert not kept.is_missing()


def test_what_a_killed_maker_left_is_removed(kept: Archive) -> None:
    left = kept.folder / f"{kept.key}.making-1"
    left.mkdir()

    def write(made: Path) -> None:
        made.write_bytes(b"classes")

    path = kept.make(write)
    assert path is not None
    assert kept.find() == path
    assert sorted(found.name for found in kept.folder.iterdir()) == sorted([path.name, f"{kept.key}.lock"])


def test_the_archives_of_a_few_environments_are_kept_and_those_used_last_stay(kept: Archive) -> None:
    others = [kept.folder / f"millwheel-of-environment-{number}-0.jsa" for number in range(10)]
    for age, other in enumerate(others):
        other.write_bytes(b"classes")
        os.utime(other, (time.time() - 60 * age,) * 2)
    left = kept.folder / "millwheel-of-environment-x.making-1"
    left.mkdir()
    os.utime(left, (0, 0))
    made = kept.make(lambda path: _nothing(path.write_bytes(b"classes")))
    assert made is not None
    assert {path for path in kept.folder.iterdir() if path.suffix != ".lock"} == {made, *others[:7]}


def test_an_archive_that_is_used_counts_as_new(kept: Archive) -> None:
    path = _put(kept)
    os.utime(path, (0, 0))
    assert kept.find() == path
    assert path.stat().st_mtime > 0


def _nothing(_: object) -> None:
    """Takes what a write returns."""


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Archive(tmp_path).key
    monkeypatch.setenv("JAVA_HOME", os.fspath(tmp_path))
    assert Archive(tmp_path).key != before


def test_a_spark_home_that_names_the_same_spark_has_the_same_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    before = Archive(tmp_path).key
    monkeypatch.setenv("SPARK_HOME", os.path.dirname(pyspark.__file__))
    assert Archive(tmp_path).key == before
    monkeypatch.setenv("SPARK_HOME", os.fspath(tmp_path))
    assert Archive(tmp_path).key != before


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(class_archive.SWITCH, "off")
    assert class_archive.archive() is None


class _Conf(dict[str, str]):
    """As much of a SparkConf as a start needs."""

    def set(self, name: str, value: str) -> None:
        self[name] = value


def _started(
    monkeypatch: pytest.MonkeyPatch, kept: Archive | None, *, ours: bool, fail: str = "nothing"
) -> list[str]:
    """The options of each JVM that a start launches; one with the text in them fails."""
    launched: list[str] = []

    def launch(conf: _Conf) -> None:
        launched.append(conf["spark.driver.extraJavaOptions"])
        if fail in launched[-1]:
            raise RuntimeError("the JVM has crashed")

    monkeypatch.setattr("millwheel.spark.jvm.launch", launch)
    monkeypatch.setattr(class_archive, "archive", lambda: kept)
    monkeypatch.setattr(Archive, "make_later", lambda self: launched.append("make it"))
    session.start_jvm(_Conf(), ours, "")  # type: ignore[arg-type]
    return launched


def test_the_first_start_makes_it_and_does_not_wait(kept: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    [options, then] = _started(monkeypatch, kept, ours=True)
    assert "SharedArchiveFile" not in options
    assert then == "make it"


def test_the_next_start_uses_it(kept: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _put(kept)
    [options] = _started(monkeypatch, kept, ours=True)
    assert f"-XX:SharedArchiveFile={path}" in options


def test_a_cluster_that_is_not_ours_gets_none(kept: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    _put(kept)
    [options] = _started(monkeypatch, kept, ours=False)
    assert "SharedArchiveFile" not in options


def test_a_start_that_fails_with_it_is_tried_without(kept: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _put(kept)
    [first, second, _] = _started(monkeypatch, kept, ours=True, fail="SharedArchiveFile")
    assert "SharedArchiveFile" in first
    assert "SharedArchiveFile" not in second
    assert not path.exists()


_START = """
    import sys
    from pathlib import Path
    from millwheel.spark.session import local_context

    context = local_context()
    context.parallelize([1], 1).map(lambda one: one + 1).collect()
    jvm = context._gateway.jvm.java.lang.ProcessHandle.current().pid()
    print(".jsa" in Path(f"/proc/{jvm}/maps").read_text().replace("classes.jsa", ""))
"""


def _made_by_this_code() -> Path | None:
    """The user's archive, unless the code that makes it was changed since."""
    kept = class_archive.archive()
    path = None if kept is None else kept.find()
    sources = [Path(module.__file__ or "") for module in (class_archive, session)]
    newest = max(source.stat().st_mtime for source in sources)
    return path if path is not None and path.stat().st_mtime > newest else None


def _made_now(kept: Archive) -> Path:
    # Not `archive.make`, which gives way to everything else that runs.
    program = (
        "from pathlib import Path; from millwheel.spark.class_archive import Archive; "
        "from millwheel.warm_up import run_a_pipeline; "
        f"Archive(Path({os.fspath(kept.folder)!r})).make(run_a_pipeline)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    path = kept.find()
    assert path is not None
    return path


@pytest.mark.spark
def test_spark_starts_with_an_archive_that_was_made_and_says_nothing(kept: Archive) -> None:
    """``make test`` has just made one, where there was none: that takes as long as many tests."""
    path = _made_by_this_code() or _made_now(kept)
    home = kept.folder / "cache"
    home.mkdir(mode=0o700)
    (home / "millwheel").symlink_to(path.parent)
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_START)],
        env={**os.environ, "XDG_CACHE_HOME": os.fspath(home), class_archive.SWITCH: "on"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "True\n"
    assert found.stderr == ""
