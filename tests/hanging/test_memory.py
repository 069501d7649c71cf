"""A hook that needs more memory than there is, in the harness: it is named, or its record is diverted."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is one of Linux")

_ROOT = Path(__file__).parents[2]
_RUN = """
    import sys
    from pathlib import Path
    import millwheel as mw
    from tests.hanging.hanging import Hanging

    folder, what, errors = Path(sys.argv[1]), *sys.argv[2:]
    p = mw.Pipeline("memory")
    p.inject("in", mw.injectors.Records([]))
    p.add(Hanging(folder / "sign", what), inputs={"in": mw.by_key}, outputs=["counts"], errors=errors)
    harness = mw.testing.Harness(p)
    try:
        harness.send("in", 1, key="2", timestamp=1)
        harness.send("in", 1, key="3", timestamp=1)
        print(harness.output("Hanging.errors")[0].value["error"])
    except mw.UserCodeError as error:
        print(error.computation, error.key, repr(error.cause))
"""


def _run(folder: Path, what: str, errors: str) -> str:
    """What a process prints whose hook reaches the limit on the process's memory."""
    (folder / "sign").touch()
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_RUN), os.fspath(folder), what, errors],
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-2_000:]
    return found.stdout.strip()


_WHAT = pytest.mark.parametrize("what", ["one large allocation", "many small ones", "the state"])


@_WHAT
def test_a_hook_without_memory_is_named(what: str, tmp_path: Path) -> None:
    assert _run(tmp_path, what, "stop") == "Hanging 3 MemoryError()"


@_WHAT
def test_the_record_of_a_hook_without_memory_is_diverted(what: str, tmp_path: Path) -> None:
    assert _run(tmp_path, what, "divert") == "MemoryError:"
