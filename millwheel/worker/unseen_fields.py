"""Fields that consumers name and that no record has had yet.

Each process checks the first records of a stream for each consumer, batch by batch, until every field was
seen: in the common case that is one record of one batch. The driver adds up what the processes report, and
warns once (`millwheel.master.field_warnings`).
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from millwheel.model.batch import RecordBatch
from millwheel.model.derived import public_name
from millwheel.model.fields_read import fields_read
from millwheel.model.graph import Edge, Graph
from millwheel.model.keys import By, field_names, has_field

FIRST = 1_000
"""Records of a stream without a field after which there is a warning."""


class UnseenFields:
    """By edge of a graph: its consumer's fields that no record has had yet."""

    def __init__(self, graph: Graph) -> None:
        self._left: dict[int, set[str]] = {}
        self._checked: dict[int, int] = {}
        self._paired: set[int] = set()
        for edge in graph.edges:
            read = fields_read(graph.nodes[edge.consumer].computation)
            names = set(read.names)
            if isinstance(edge.extractor, By):
                names |= set(edge.extractor.fields)
            if names:
                self._left[edge.index] = names
            if read.paired:
                self._paired.add(edge.index)

    def wants(self, edge: Edge) -> bool:
        """Whether records of an edge are still to be checked."""
        return edge.index in self._left

    def check(self, edge: Edge, batch: RecordBatch) -> list[list[Any]]:
        """News of an edge: [consumer, stream, field, records without it, fields].

        Of a field that is there, with 0 records without it.
        """
        left = self._left.get(edge.index)
        if left is None or not batch.timestamps:
            return []
        before = self._checked.get(edge.index, 0)
        if batch.windows is not None:  # whose values are made all at once
            batch = batch.take(range(min(len(batch), FIRST - before))).decoded()
        found: set[str] = set()
        names: dict[str, None] = {}
        count = 0
        for position in islice(range(len(batch)), FIRST - before):
            value = batch.value(position)
            if edge.index in self._paired:
                value = value[1]
            count += 1
            found |= {field for field in left if has_field(value, field)}
            if found == left:
                break
            if len(names) < _SHOWN:
                names.update(dict.fromkeys(field_names(value)))
        self._checked[edge.index] = before + count
        report: list[list[Any]] = [[edge.consumer, public_name(edge.stream), f, 0, []] for f in found]
        left -= found
        shown = list(names)[:_SHOWN]
        report += [[edge.consumer, public_name(edge.stream), f, count, shown] for f in left]
        if not left or before + count >= FIRST:
            del self._left[edge.index]
        return report


_SHOWN = 30  # fields that a warning names
