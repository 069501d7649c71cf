"""What is printed of an error: what, where, what to do; and the whole trace in a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import traceback
from pathlib import Path

import pytest

import millwheel as mw
from millwheel import tracebacks
from tests.computations import Hooks


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))


def _failed() -> mw.UserCodeError:
    def on_record(c: Hooks, record: mw.Record) -> None:
        raise KeyError("price")

    p = mw.Pipeline("failing")
    p.inject("in", mw.injectors.Records([]))
    p.add(Hooks(on_record), name="C", inputs={"in": mw.by("user")})
    h = mw.testing.Harness(p)
    with pytest.raises(mw.UserCodeError) as caught:
        h.send("in", {"user": "k"}, timestamp=1)
    return caught.value


def test_a_user_s_error_is_shown_with_the_user_s_own_lines() -> None:
    text = tracebacks.explain(_failed())
    assert "computation 'C', key 'k'" in text
    assert 'raise KeyError("price")' in text
    assert "keyed.py" not in text
    assert len(text.splitlines()) < 20


def test_the_whole_trace_is_in_the_file_that_the_message_names() -> None:
    error = _failed()
    path = Path(tracebacks.explain(error).rpartition("The whole trace is in ")[2])
    assert "keyed.py" in path.read_text()
    assert path.read_text().strip().endswith("".join(traceback.format_exception(error)).strip()[-40:])
    assert path.stat().st_mode & 0o077 == 0


def test_a_mistake_with_nothing_behind_it_needs_no_file() -> None:
    assert tracebacks.brief(mw.PipelineError("there is no stream 'a'")) == "there is no stream 'a'"


def test_files_do_not_pile_up(tmp_path: Path) -> None:
    folder = tmp_path / f"millwheel-traces-{os.getuid()}"
    folder.mkdir(mode=0o700)
    for number in range(60):
        (folder / f"20200101-{number:06}-1.txt").touch()
    tracebacks.keep(_failed())
    assert len(list(folder.iterdir())) == 20


def test_where_no_file_can_be_written_the_error_is_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path / "nowhere"))
    assert "computation 'C'" in tracebacks.explain(_failed())


_SCRIPT = """
    import millwheel as mw

    class Prices(mw.Computation):
        def process_record(self, record):
            record.value["price"]

    p = mw.Pipeline("prices")
    p.inject("in", mw.injectors.Records([mw.Record(key="k", value={}, timestamp=1)]))
    p.add(Prices(), inputs={"in": mw.by_key})
    mw.run(p, store="memory:")
"""


@pytest.mark.spark
def test_a_script_that_fails_on_spark_ends_with_its_own_error_and_nothing_of_spark_s(tmp_path: Path) -> None:
    script = tmp_path / "prices.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    found = subprocess.run(
        [sys.executable, os.fspath(script)],
        env={**os.environ, "TMPDIR": os.fspath(tmp_path), "PYTHONPATH": os.fspath(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    lines = found.stderr.splitlines()
    assert 'mw.run(p, store="memory:")' in found.stderr
    assert 'record.value["price"]' in found.stderr
    assert any(line.startswith("UserCodeError: computation 'Prices', key 'k'") for line in lines)
    assert len(lines) < 15
    assert not re.search(r"WARN|Spark|Traceback|at org\.|incubator", found.stderr)
    assert Path(lines[-1].rpartition(" ")[2]).exists()
