"""The output of a simulated pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millwheel.model.graph import Graph
from millwheel.model.record import Record
from millwheel.model.sink import Sink
from millwheel.testing.faults import World


class Taps:
    """The output of every stream: by epoch and shard, the last write."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.written: dict[str, dict[tuple[int, int], list[Record]]] = {}

    def tap(self, graph: Graph) -> Graph:
        """The graph with a tap on each stream in place of its sinks."""
        return replace(graph, sinks={stream: (_Tap(self, stream),) for stream in graph.streams})

    def write(self, stream: str, epoch: int, shard: int, records: Sequence[Record]) -> None:
        self._world.point()
        self.written.setdefault(stream, {})[epoch, shard] = list(records)

    def records(self, stream: str) -> list[Record]:
        found = self.written.get(stream, {})
        return [record for place in sorted(found) for record in found[place]]


class _Tap(Sink):
    """Replaces the sinks of one stream."""

    def __init__(self, taps: Taps, stream: str) -> None:
        self._taps = taps
        self._stream = stream

    def write(self, epoch: int, shard: int, records: Sequence[Record]) -> None:
        self._taps.write(self._stream, epoch, shard, records)
