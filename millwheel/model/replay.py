"""Reading an injector a second time, for a computation that was added later.

While a computation catches up it reads the injector on its own: a second `Source` with the same injector and
with offsets and a low watermark of its own, whose records go to that computation only. The shared one skips
it meanwhile. When both are at the same offsets, the second one is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from millwheel.errors import PipelineError
from millwheel.model.graph import Graph
from millwheel.model.names import Sender, SourceName


def replaying(graph: Graph, replays: Mapping[str, Collection[SourceName]]) -> Graph:
    """The graph with separate injectors; ``replays``: those of each computation."""
    sources = list(graph.sources)
    own: dict[str, dict[Sender, Sender]] = {}
    for reader, names in replays.items():
        for source in graph.sources:
            if reader in graph.nodes and source.name in names:
                name = source.name._replace(reader=reader)
                sources.append(replace(source, name=name))
                own.setdefault(reader, {})[source.name] = name
    return replace(graph, sources=tuple(sources), replays=own)


def to_replay(
    graph: Graph, reader: str, new: Collection[str], read: Collection[SourceName]
) -> list[SourceName]:
    """The injectors that a new computation must read from their beginning.

    ``new`` are the computations that are new with it, ``read`` the injectors of which something was read.
    Raises a `PipelineError` if a stream cannot be read from its beginning.
    """
    found: list[SourceName] = []
    for stream in graph.nodes[reader].inputs:
        for producer in graph.producers[stream]:
            if isinstance(producer, SourceName):
                if producer in read and producer not in found:
                    found.append(producer)
            elif producer not in new:
                raise PipelineError(
                    f'computation {reader!r}: replay="earliest" cannot restore stream {stream!r}: '
                    f"{producer!r}, which writes it, exists already, and its output is not kept. "
                    f"Leave replay out, or add {producer!r} once more, under another name and with replay, "
                    f"for {reader!r} to read"
                )
            elif not graph.nodes[producer].replay and to_replay(graph, producer, new, read):
                raise PipelineError(
                    f'computation {reader!r}: replay="earliest" needs it of {producer!r} too, which writes '
                    f"stream {stream!r} and would start with new records"
                )
    return found
