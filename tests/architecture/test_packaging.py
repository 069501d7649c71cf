"""What is packaged: the extras that messages and docs name exist, and `all` has what each of them has."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.project import ROOT, project

EXTRAS: dict[str, list[str]] = project()["optional-dependencies"]
_NAMED = re.compile(r"millwheel-spark\[([a-z0-9_,]+)\]")


def test_every_extra_that_is_named_exists() -> None:
    sources = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *_package()]
    named = {
        name for path in sources for found in _NAMED.findall(path.read_text()) for name in found.split(",")
    }
    assert named - EXTRAS.keys() == set()
    assert {"s3", "delta", "iceberg", "kafka", "postgres", "ui", "all"} <= EXTRAS.keys()


def _package() -> list[Path]:
    import millwheel

    return list(Path(millwheel.__file__).parent.rglob("*.py"))


def test_all_has_what_each_extra_has() -> None:
    tools = {"dev", "docs", "bench", "dist", "matrix", "all"}
    wanted = {need for name, needs in EXTRAS.items() if name not in tools for need in needs}
    assert wanted == set(EXTRAS["all"])


def test_constraints_pin_every_dependency_of_an_extra() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().split()
    }
    needs = {re.split(r"[\[<>=]", need)[0].lower() for needs in EXTRAS.values() for need in needs}
    assert needs - pinned == set()
