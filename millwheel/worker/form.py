"""The form of a computation's records and state, for display."""

from __future__ import annotations

from millwheel.model.derived import public_name
from millwheel.model.folding import folding_of
from millwheel.model.graph import Graph
from millwheel.worker.inject import needed_fields


def form_of(graph: Graph, name: str) -> str:
    """Return how a windowing computation keeps windows and inputs; else nothing."""
    computation = graph.nodes[name].computation
    folding = folding_of(computation)
    if folding is None:
        kept_by_key = hasattr(computation, "_folding")  # operators of windows have one, or None
        return "its windows are kept by key, and each record is an object" if kept_by_key else ""
    parts = ["its windows are kept as columns"]
    injected = {source.stream for source in graph.sources}
    for stream in graph.nodes[name].inputs:
        fields = needed_fields(graph, stream) if stream in injected else None
        shown = f"stream {public_name(stream)!r}"
        if folding.fields is None:
            parts.append(f"{shown}: each record is an object, as an aggregate reads whole values")
        elif fields is not None and fields.columns:
            parts.append(f"{shown}: read as columns where the injector can, and added up there")
        else:
            parts.append(f"{shown}: each record is an object, and added up where it is made")
    return "; ".join(parts)
