"""The injectors and sinks of a pipeline while a driver has them open."""

from __future__ import annotations

from millwheel.model.graph import Graph
from millwheel.model.injector import Injector
from millwheel.model.sink import Sink


class Connections:
    """Invariant: what was opened is closed once, the last first, also where opening another one failed."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._opened: list[Injector | Sink] = []

    def open(self, journal: str, *, follow: bool) -> None:
        """Opens all of them, and tells the injectors whose they are: the name of the journal."""
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
        """Tells the sinks which epoch was committed last."""
        for sink in self.sinks:
            sink.begin(journal, epoch)

    def commit(self, epoch: int) -> None:
        """Tells the sinks that an epoch is committed."""
        for sink in self.sinks:
            sink.commit(epoch)

    def close(self) -> None:
        """Closes what was opened."""
        while self._opened:
            self._opened.pop().close()
