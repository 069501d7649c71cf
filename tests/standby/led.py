"""A pipeline that forwards what comes into a folder."""

from __future__ import annotations

import os
from pathlib import Path

import millwheel as mw
from tests.computations import Echo


def pipeline() -> mw.Pipeline:
    """As the environment says."""
    folder = Path(os.environ["LED"])
    p = mw.Pipeline("led")
    p.inject("in", mw.injectors.Files(folder / "in" / "*.jsonl", timestamp="t"))
    p.add(Echo(), inputs={"in": mw.by("n")}, outputs=["out"])
    p.sink("out", mw.sinks.JsonLines(folder / "out"))
    return p


def read_output(folder: Path) -> list[int]:
    """What has come out."""
    out = folder / "out"
    return sorted(record.value["n"] for record in mw.sinks.JsonLines(out).records()) if out.exists() else []
