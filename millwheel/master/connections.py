"""The injectors and sinks of a pipeline while a driver has them open."""

from __future__ import annotations

from contextlib import ExitStack

from millwheel.model.graph import Graph
from millwheel.model.injector import Injector
from millwheel.model.sink import Sink


class Connections:
    """The open injectors and sinks of a driver.

    Invariant: each is closed once, in reverse order, also if opening or closing one failed.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._opened: list[Injector | Sink] = []

    def open(self, journal: str, *, follow: bool) -> None:
        """Opens all of them, and hands the injectors the name of the journal."""
        for source in self._graph.sources:
            self._opened.append(source.injector)
            source.injector.open(follow=follow)
        for sink in self.sinks:
            self._opened.append(sink)
            sink.open()
        for source in self._graph.sources:
            source.injector.begin(journal, str(source.name))

    @property
    def sinks(self) -> list[Sink]:
        """Every sink of every stream."""
        return [sink for sinks in self._graph.sinks.values() for sink in sinks]

    def resume(self, journal: str, epoch: int) -> None:
        """Passes the last committed epoch to the sinks."""
        for sink in self.sinks:
            sink.begin(journal, epoch)

    def commit(self, epoch: int) -> None:
        """Notifies the sinks that an epoch is committed."""
        for sink in self.sinks:
            sink.commit(epoch)

    def close(self) -> None:
        """Closes those that are open."""
        opened, self._opened = self._opened, []
        with ExitStack() as stack:  # the others are closed though one raises
            for one in opened:
                stack.callback(one.close)
