"""Injectors and sinks are closed, whatever one of them does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import millwheel as mw
from millwheel.master.connections import Connections
from millwheel.model.graph import build


class _Door(mw.Sink):
    """Notes that it was closed; the one that is stuck raises."""

    def __init__(self, closed: list[str], name: str) -> None:
        self._closed = closed
        self._name = name

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        """Nothing comes."""

    def close(self) -> None:
        self._closed.append(self._name)
        if self._name == "stuck":
            raise OSError("the disk is full")


def test_one_that_cannot_be_closed_leaves_no_other_open() -> None:
    closed: list[str] = []
    p = mw.Pipeline("doors")
    p.inject("in", mw.injectors.Records([]))
    for name in ("first", "stuck", "last"):
        p.sink("in", _Door(closed, name))
    connections = Connections(build(p))
    connections.open("journal", follow=False)
    with pytest.raises(OSError, match="the disk is full"):
        connections.close()
    assert closed == ["last", "stuck", "first"]
