"""Folders in memory end with their process, and never while it lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from millwheel.store.scratch import Scratch, sweep

_MAKE = """
import sys
from millwheel.store.scratch import Scratch
scratch = Scratch("frames", sys.argv[1])
(scratch.path / "frame").write_bytes(b"x" * 1000)
print(scratch.path, flush=True)
sys.stdin.read()
"""


def _process(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has made a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAKE, os.fspath(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    process, folder = _process(tmp_path)
    assert sweep(os.fspath(tmp_path)) == []
    assert (folder / "frame").exists()
    process.kill()
    process.communicate()
    assert (folder / "frame").exists()
    assert sweep(os.fspath(tmp_path)) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_this_process_is_not_removed(tmp_path: Path) -> None:
    scratch = Scratch("store", os.fspath(tmp_path))
    assert sweep(os.fspath(tmp_path)) == []
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_what_others_keep_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "millwheel-other").mkdir()
    (tmp_path / "sem.something").write_text("")
    assert sweep(os.fspath(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 2
