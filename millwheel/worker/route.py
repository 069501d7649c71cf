"""Routing: from the records of a stream to a section for each consumer and interval.

The sender applies the consumer's key extractor (4.2), finds the interval that owns the key, and packs.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from millwheel.errors import UserCodeError, shorten
from millwheel.model.batch import RecordBatch, join
from millwheel.model.codec import pack
from millwheel.model.derived import Derived, KeptKey
from millwheel.model.folding import Folding, folding_of
from millwheel.model.graph import Edge, Graph
from millwheel.model.keys import SKIP, TABLETS, By, ByKey, field_of
from millwheel.model.pipeline import ERRORS_SUFFIX, Source
from millwheel.model.record import Record
from millwheel.model.time import MIN_TIME
from millwheel.store.keyspace import tablets_of
from millwheel.worker.envelope import pack_batch, pack_section
from millwheel.worker.plan import Plan


class Router:
    """Sends the records that one interval, or one injecting task, puts on streams.

    ``sections`` collects (level, slot, bytes) for other tasks, ``local`` the records for computations
    that are chained behind in this one, ``batches`` what goes to sinks.
    """

    def __init__(self, graph: Graph, plan: Plan, level: int, shard: int, diverted: str | None = None) -> None:
        self._graph = graph
        self._plan = plan
        self._level = level
        self._shard = shard
        self._diverted = diverted
        self.sections: list[tuple[int, int, bytes]] = []
        self.local: dict[int, list[RecordBatch]] = {}
        self.batches: list[bytes] = []
        self.streams: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.sinks: dict[str, list[RecordBatch]] = {}

    def inject(self, source: Source, stream: str, batch: RecordBatch) -> None:
        """Puts what a source has read on a stream; what is read once more, for who catches up alone."""
        edges = self._graph.readers(source, stream)
        if source.reader:
            self._send(edges, batch, None)
        else:
            self._put(stream, batch, None, edges)
        for derived, parent in self._graph.derived.get(stream, ()):
            self.inject(source, derived.name, self._derive(derived, parent, stream, batch, None))

    def send(self, stream: str, batch: RecordBatch, producer: str | None) -> None:
        """Puts records on a stream: to each consumer, to the sinks, and on the streams derived from it."""
        self._put(stream, batch, producer, self._graph.consumers[stream])
        for derived, parent in self._graph.derived.get(stream, ()):
            self.send(derived.name, self._derive(derived, parent, stream, batch, producer), producer)

    def _put(self, stream: str, batch: RecordBatch, producer: str | None, edges: tuple[Edge, ...]) -> None:
        count = len(batch)
        if not count:
            return
        self.streams[stream] = self.streams.get(stream, 0) + count
        self._send(edges, batch, producer)
        if stream in self._graph.sinks:
            self.sinks.setdefault(stream, []).append(batch)

    def _derive(
        self, derived: Derived, parent: int, stream: str, batch: RecordBatch, producer: str | None
    ) -> RecordBatch:
        """The records of a derived stream; one that its functions fail on goes where its producer diverts."""
        if not batch:
            return batch
        from millwheel.worker.derive import derive  # which pipelines without operators do without

        def failed(record: Record, what: str, cause: Exception | None) -> None:
            message = f"stream {derived.label!r}: {what}, for the record {shorten(record)}"
            errors = self._diverted
            if producer is not None and self._graph.nodes[producer].errors == "divert":
                errors = producer + ERRORS_SUFFIX
            if errors is None:
                raise UserCodeError(
                    message, computation=derived.label, key=record.key, record=record, cause=cause
                )
            name = producer or derived.label
            self.failed[name] = self.failed.get(name, 0) + 1
            self.send(errors, diverted(record, message, cause), None)

        used = len(self._graph.derived[stream]) + (stream in self._graph.sinks)
        return derive(derived, parent, stream, batch, failed, alone=used == 1)

    def _send(self, edges: tuple[Edge, ...], batch: RecordBatch, producer: str | None) -> None:
        objects: list[Any] = []
        for edge in edges:
            chained = producer is not None and edge.level == self._level and isinstance(edge.extractor, ByKey)
            if chained:
                self.local.setdefault(edge.index, []).append(batch)
                continue
            if isinstance(edge.extractor, ByKey):
                keys: list[Any] = batch.key_column()
            else:
                keys = self._keys(edge, batch, objects)
            folding = folding_of(self._graph.nodes[edge.consumer].computation)
            if folding is None or not self._aggregated(edge, folding, keys, batch, objects):
                self._pack(edge, keys, batch)

    def _aggregated(
        self, edge: Edge, folding: Folding, keys: list[Any], batch: RecordBatch, objects: list[Any]
    ) -> bool:
        """Sends partial aggregates in the place of the records; False where each of them must be seen."""
        if batch.ids is not None or len(keys) < _WORTH_IT or folding.fields is None:
            return False
        from millwheel.worker.partials import dealt, partials_of  # with NumPy, which small epochs do without

        fields = {}
        for name in folding.fields:
            if batch.fields is not None and name in batch.fields:
                fields[name] = batch.fields[name]
                continue
            if not objects:
                objects += batch.objects()
            fields[name] = [field_of(value, name) for value in objects]
        sent = partials_of(
            folding, keys, batch.timestamps, fields, self._plan.before.get(edge.consumer, MIN_TIME)
        )
        if sent is None:
            return False
        intervals = self._plan.intervals[edge.level - 1]
        for index, blob in dealt(sent, folding, self._plan.tables[edge.level - 1], len(intervals)):
            section = pack_section(edge.index, index, None, RecordBatch([], [blob]))
            self.sections.append((edge.level, intervals[index].slot, section))
        return True

    def mark(self) -> tuple[Any, ...]:
        """What there is so far, for `rollback`."""
        return (
            len(self.sections),
            dict(self.streams),
            dict(self.failed),
            {stream: list(parts) for stream, parts in self.sinks.items()},
        )

    def rollback(self, mark: tuple[Any, ...]) -> None:
        """Forgets what was sent since the mark."""
        length, self.streams, self.failed, self.sinks = mark
        del self.sections[length:]

    def finish(self) -> None:
        """Packs what goes to sinks: one batch a stream, so that (epoch, shard) names it."""
        order = {stream: index for index, stream in enumerate(sorted(self._graph.sinks))}
        for stream, parts in self.sinks.items():
            whole = join(parts)
            shard = order[stream] * _SHARDS_A_STREAM + self._level * _SHARDS_A_LEVEL + self._shard
            self.batches.append(pack_batch(stream, shard, whole))

    def _keys(self, edge: Edge, batch: RecordBatch, objects: list[Any]) -> list[Any]:
        """The consumer's key of each record; fills ``objects`` with the values once they are needed."""
        extractor = edge.extractor
        if isinstance(extractor, KeptKey):
            return cast(list[Any], batch.key_column())
        fields = batch.fields
        if isinstance(extractor, By) and fields is not None and fields.keys() >= set(extractor.fields):
            keys = extractor.texts([fields[field] for field in extractor.fields])
            if keys is not None:
                return cast(list[Any], keys)
        if not objects:
            objects += batch.objects()
        if isinstance(extractor, By):
            keys = extractor.column(objects)
            if keys is not None:
                return cast(list[Any], keys)
        return [self._key(edge, batch, objects, i) for i in range(len(objects))]

    def _key(self, edge: Edge, batch: RecordBatch, objects: list[Any], i: int) -> Any:
        extractor = edge.extractor
        id = batch.ids[i] if batch.ids is not None else None
        key = "" if batch.keys is None else batch.keys[i]
        record = Record(objects[i], batch.timestamps[i], key, edge.stream, id)
        try:
            key = extractor(record)
        except Exception as error:
            what = f"raised {type(error).__name__}: {error}"
            self._bad(edge, record, f"the key extractor {extractor!r} {what}", error)
            return SKIP
        if type(key) is str or key is SKIP:
            return key
        if isinstance(key, str):
            return str(key)
        what = f"returned {shorten(key, 60)}, which is no str and not SKIP"
        self._bad(edge, record, f"the key extractor {extractor!r} {what}", None)
        return SKIP

    def _bad(self, edge: Edge, record: Record, what: str, cause: Exception | None) -> None:
        """A record with which the consumer's own code, that runs here, could do nothing."""
        message = (
            f"computation {edge.consumer!r}, stream {edge.stream!r}: {what}, for the record {shorten(record)}"
        )
        errors: str | None = None
        if self._diverted is not None and self._diverted.removesuffix(ERRORS_SUFFIX) in self._graph.origins(
            edge.stream
        ):
            errors = self._diverted
        elif self._graph.nodes[edge.consumer].errors == "divert":
            errors = edge.consumer + ERRORS_SUFFIX
        if errors is None:
            raise UserCodeError(message, computation=edge.consumer, record=record, cause=cause)
        self.failed[edge.consumer] = self.failed.get(edge.consumer, 0) + 1
        self.send(errors, diverted(record, message, cause), None)

    def _pack(self, edge: Edge, keys: list[Any], batch: RecordBatch) -> None:
        """A section for each interval; of many records one for each tablet.

        The receiver of many works on a piece that fits a processor's cache, and then on the next.
        """
        intervals = self._plan.intervals[edge.level - 1]
        table = self._plan.tables[edge.level - 1]
        batch = replace(batch, keys=keys, fields=None)
        if len(keys) >= _MANY:
            for tablet, (mine, counts) in enumerate(_by_tablet(batch)):
                self._section(edge, table[tablet], tablet, mine, counts)
        elif len(intervals) == 1 and SKIP not in keys:
            self._section(edge, 0, None, batch)
        else:
            positions: list[list[int]] = [[] for _ in range(len(intervals) + 1)]
            for position, place in enumerate(_places(keys, table, len(intervals))):
                positions[place].append(position)
            for index, own in enumerate(positions[:-1]):
                self._section(edge, index, None, batch.take(own))

    def _section(
        self, edge: Edge, index: int, tablet: int | None, batch: RecordBatch, counts: list[int] | None = None
    ) -> None:
        if batch.keys:
            slot = self._plan.intervals[edge.level - 1][index].slot
            data = pack_section(edge.index, index, tablet, batch, counts)
            self.sections.append((edge.level, slot, data))


_WORTH_IT = 64  # records that are aggregated before they are sent: fewer are sent as they are, for less
_MANY = 8_000  # records that are sent at once: fewer are in the cache as it is
_OFTEN = 8  # records of a key: with fewer, a list for each of them costs more than it spares


def _by_tablet(batch: RecordBatch) -> list[tuple[RecordBatch, list[int] | None]]:
    """The records of each tablet; key by key, where keys come so often that naming each once spares work."""
    from millwheel.worker.partitioner import Dealt  # with NumPy, which small epochs do without

    keys: list[Any] = batch.key_column()
    distinct = dict.fromkeys(keys)
    if len(distinct) * _OFTEN > len(keys):
        dealt = Dealt(batch, _places(keys, range(TABLETS), TABLETS), TABLETS)
        sorted_keys = dealt.keys()
        return [(dealt.cut(t, t + 1, sorted_keys[dealt.span(t, t + 1)]), None) for t in range(TABLETS)]
    distinct.pop(SKIP, None)
    names = list(distinct)
    by_tablet: list[list[str]] = [[] for _ in range(TABLETS)]
    for key, tablet in zip(names, tablets_of(names), strict=True):
        by_tablet[tablet].append(key)
    numbers: dict[Any, int] = {key: number for number, key in enumerate(chain.from_iterable(by_tablet))}
    numbers[SKIP] = len(names)
    dealt = Dealt(batch, map(numbers.__getitem__, keys), len(names))
    found: list[tuple[RecordBatch, list[int] | None]] = []
    first = 0
    for mine in by_tablet:
        last = first + len(mine)
        found.append((dealt.cut(first, last, mine), dealt.sizes(first, last)))
        first = last
    return found


def _places(keys: list[Any], table: Sequence[int], nobody: int) -> list[int]:
    """The place of each record, from a table that has that of each tablet; what is skipped has nobody's."""
    distinct = dict.fromkeys(keys)  # a digest of each record takes 1.14 times the CPU with 1,000 keys
    skipped = distinct.pop(SKIP, nobody) is None
    places: dict[Any, int] = {
        key: table[tablet] for key, tablet in zip(distinct, tablets_of(list(distinct)), strict=True)
    }
    if skipped:
        places[SKIP] = nobody
    return list(map(places.__getitem__, keys))


# More than the intervals of a level and the levels of a graph, so that no two shards of a sink meet.
_SHARDS_A_LEVEL = 1 << 14
_SHARDS_A_STREAM = 1 << 20


def diverted(record: Record, message: str, cause: BaseException | None) -> RecordBatch:
    """A record as it goes to an errors stream: its key and timestamp, what was wrong, and its value.

    It is packed, so that each consumer gets a copy of its own.
    """
    value = {
        "error": message,
        "traceback": "".join(traceback.format_exception(cause)) if cause is not None else message,
        "stream": record.stream,
        "value": record.value,
        "id": record.id,
    }
    return RecordBatch([record.timestamp], [pack(value)], keys=[record.key], packed=True)
