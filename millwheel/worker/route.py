"""Routing: the records of a stream to a section for each consumer and interval.

The sender applies the consumer's key extractor (4.2), finds the interval that owns the key, and packs.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, cast

from millwheel.errors import UserCodeError, shorten
from millwheel.model.batch import RecordBatch, join
from millwheel.model.codec import pack
from millwheel.model.derived import Derived, KeptKey
from millwheel.model.field_columns import FieldColumns
from millwheel.model.folding import Folding, folding_of
from millwheel.model.graph import Edge, Graph
from millwheel.model.keys import PARTS, SKIP, By, ByKey, field_of
from millwheel.model.pipeline import ERRORS_SUFFIX, Source
from millwheel.model.record import Record
from millwheel.model.time import MIN_TIME
from millwheel.store.keyspace import tablets_of
from millwheel.worker.envelope import pack_batch, pack_section
from millwheel.worker.plan import Plan
from millwheel.worker.unseen_fields import FIRST, UnseenFields

if TYPE_CHECKING:
    from millwheel.worker.partials import Sent

if TYPE_CHECKING:
    from millwheel.worker.side_tables import SideTables


class Router:
    """Sends the records of one interval, or one injecting task, to streams.

    ``sections`` collects (level, slot, bytes) for other tasks, ``local`` the records for chained
    computations in this one, ``batches`` those for sinks.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        level: int,
        shard: int,
        diverted: str | None = None,
        unseen: UnseenFields | None = None,
        side_tables: SideTables | None = None,
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._level = level
        self._shard = shard
        self._diverted = diverted
        self._unseen = unseen
        self._side_tables = side_tables
        self.unseen_fields: list[list[Any]] = []
        self.sections: list[tuple[int, int, bytes]] = []
        self.local: dict[int, list[RecordBatch]] = {}
        self.batches: list[bytes] = []
        self.streams: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.sinks: dict[str, list[RecordBatch]] = {}

    def inject(self, source: Source, stream: str, batch: RecordBatch) -> None:
        """Sends a source's records to a stream, or only to one that catches up."""
        edges = self._graph.readers(source, stream)
        if source.reader:
            self._send(edges, batch, None)
        else:
            self._put(stream, batch, None, edges)
        for derived, parent in self._graph.derived.get(stream, ()):
            self.inject(source, derived.name, self._derive(derived, parent, stream, batch, None))

    def send(self, stream: str, batch: RecordBatch, producer: str | None) -> None:
        """Sends records to a stream's consumers, its sinks, and derived streams."""
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
        """The records of a derived stream; those its functions fail on are diverted."""
        if not batch:
            return batch
        from millwheel.worker.derive import derive  # only for pipelines with operators

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
        tables = self._side_tables
        loaded = None if tables is None else partial(tables.of, self._plan)
        return derive(derived, parent, stream, batch, failed, alone=used == 1, loaded=loaded)

    def _send(self, edges: tuple[Edge, ...], batch: RecordBatch, producer: str | None) -> None:
        objects: list[Any] = []
        sent = batch
        for edge in edges:
            if self._unseen is not None:
                self.unseen_fields += self._unseen.check(edge, batch)
            chained = producer is not None and edge.level == self._level and isinstance(edge.extractor, ByKey)
            if chained:
                self.local.setdefault(edge.index, []).append(sent)
                continue
            if batch.windows is not None and batch.fields is None:
                batch = replace(batch, fields=batch.windows.fields())
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
        """Sends partial aggregates instead of the records; False if that is impossible."""
        if batch.ids is not None or len(keys) < WORTH_IT or folding.fields is None:
            return False
        from millwheel.worker.partials import partials_of  # imports NumPy, which small epochs do not need

        fields = {}
        for name in folding.fields:
            if batch.fields is not None and name in batch.fields:
                fields[name] = batch.fields[name]
                continue
            if not objects:
                objects += batch.objects()
            fields[name] = [field_of(value, name) for value in objects]
        before = self._plan.before.get(edge.consumer, MIN_TIME)
        sent = partials_of(folding, keys, batch.timestamps, fields, before, self._plan.tablets)
        if sent is None:
            return False
        self._send_partials(edge, folding, sent)
        return True

    def inject_columns(self, source: Source, stream: str, columns: FieldColumns) -> bool:
        """Sends partial aggregates of a source's columns; False: records are needed."""
        if len(columns) < WORTH_IT:
            return False
        from millwheel.worker.partials import partials_of

        found: list[tuple[Edge, Folding, Sent]] = []
        for edge in self._graph.readers(source, stream):
            folding = folding_of(self._graph.nodes[edge.consumer].computation)
            assert isinstance(edge.extractor, By)
            assert folding is not None
            assert folding.fields is not None
            keys = columns.keys(edge.extractor)
            if keys is None:
                return False
            fields = {name: columns.field(name) for name in folding.fields}
            before = self._plan.before.get(edge.consumer, MIN_TIME)
            sent = partials_of(folding, keys, columns.timestamps, fields, before, self._plan.tablets)
            if sent is None:
                return False
            found.append((edge, folding, sent))
        if not source.reader:
            self.streams[stream] = self.streams.get(stream, 0) + len(columns)
        for edge, folding, sent in found:
            if self._unseen is not None and self._unseen.wants(edge):
                self.unseen_fields += self._unseen.check(edge, columns.records(FIRST))
            self._send_partials(edge, folding, sent)
        return True

    def _send_partials(self, edge: Edge, folding: Folding, sent: Sent) -> None:
        from millwheel.worker.partials import dealt

        intervals = self._plan.intervals[edge.level - 1]
        for index, blob in dealt(sent, folding, self._plan.tables[edge.level - 1], len(intervals)):
            section = pack_section(edge.index, index, None, RecordBatch([], [blob]))
            self.sections.append((edge.level, intervals[index].slot, section))

    def mark(self) -> tuple[Any, ...]:
        """The current position, for `rollback`."""
        return (
            len(self.sections),
            dict(self.streams),
            dict(self.failed),
            {stream: list(parts) for stream, parts in self.sinks.items()},
        )

    def rollback(self, mark: tuple[Any, ...]) -> None:
        """Removes what was sent since the mark."""
        length, self.streams, self.failed, self.sinks = mark
        del self.sections[length:]

    def finish(self) -> None:
        """Packs the sinks' records: one batch a stream, named by (epoch, shard)."""
        known = self._plan.sinks
        added = sorted(self._graph.sinks.keys() - set(known))  # by a start that finishes a former one's epoch
        order = {stream: index for index, stream in enumerate((*known, *added))}
        for stream, parts in self.sinks.items():
            whole = join(parts)
            shard = order[stream] * _SHARDS_A_STREAM + self._level * _SHARDS_A_LEVEL + self._shard
            self.batches.append(pack_batch(stream, shard, whole))

    def _keys(self, edge: Edge, batch: RecordBatch, objects: list[Any]) -> list[Any]:
        """The consumer's key of each record; fills ``objects`` if values are needed."""
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
        what = f"returned {shorten(key, 60)}, which is neither a str nor SKIP"
        self._bad(edge, record, f"the key extractor {extractor!r} {what}", None)
        return SKIP

    def _bad(self, edge: Edge, record: Record, what: str, cause: Exception | None) -> None:
        """Handles a record that the consumer's code, which runs here, failed on."""
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
        """Packs a section for each interval; with many records, for each of its parts.

        With many, the receiver processes pieces that fit the CPU cache.
        """
        intervals = self._plan.intervals[edge.level - 1]
        table = self._plan.tables[edge.level - 1]
        batch = replace(batch.decoded() if batch.windows is not None else batch, keys=keys, fields=None)
        if len(keys) >= MANY:
            for part, (mine, counts) in enumerate(by_part(batch)):
                owners = table[part * len(table) // PARTS : (part + 1) * len(table) // PARTS]
                if owners[0] == owners[-1]:
                    self._section(edge, owners[0], part, mine, counts)
                else:
                    names = mine.key_column()
                    each = names if counts is None else list(chain.from_iterable(map(repeat, names, counts)))
                    self._divide(edge, part, each, replace(mine, keys=each))
        elif len(intervals) == 1 and SKIP not in keys:
            self._section(edge, 0, None, batch)
        else:
            self._divide(edge, None, keys, batch)

    def _divide(self, edge: Edge, part: int | None, keys: list[Any], batch: RecordBatch) -> None:
        """Packs a section for each interval that has some of the records."""
        nobody = len(self._plan.intervals[edge.level - 1])
        positions: defaultdict[int, list[int]] = defaultdict(list)
        for position, place in enumerate(_places(keys, self._plan.tables[edge.level - 1], nobody)):
            positions[place].append(position)
        positions.pop(nobody, None)
        for index in sorted(positions):
            self._section(edge, index, part, batch.take(positions[index]))

    def _section(
        self, edge: Edge, index: int, part: int | None, batch: RecordBatch, counts: list[int] | None = None
    ) -> None:
        if batch.keys:
            slot = self._plan.intervals[edge.level - 1][index].slot
            data = pack_section(edge.index, index, part, batch, counts)
            self.sections.append((edge.level, slot, data))


WORTH_IT = 64  # records to aggregate before sending: with fewer it costs more than it saves
MANY = 8_000  # records to divide by parts of the key space: fewer fit the CPU cache as they are
OFTEN = 8  # records of a key: with fewer, a list for each costs more than it saves


def by_part(batch: RecordBatch) -> list[tuple[RecordBatch, list[int] | None]]:
    """The records of each part of the key space; sorted by key if keys repeat often."""
    from millwheel.worker.partitioner import Dealt  # imports NumPy, which small epochs do not need

    keys: list[Any] = batch.key_column()
    distinct = dict.fromkeys(keys)
    if len(distinct) * OFTEN > len(keys):
        dealt = Dealt(batch, _places(keys, range(PARTS), PARTS), PARTS)
        sorted_keys = dealt.keys()
        return [(dealt.cut(t, t + 1, sorted_keys[dealt.span(t, t + 1)]), None) for t in range(PARTS)]
    distinct.pop(SKIP, None)
    names = list(distinct)
    by_part: list[list[str]] = [[] for _ in range(PARTS)]
    for key, part in zip(names, tablets_of(names, PARTS), strict=True):
        by_part[part].append(key)
    numbers: dict[Any, int] = {key: number for number, key in enumerate(chain.from_iterable(by_part))}
    numbers[SKIP] = len(names)
    dealt = Dealt(batch, map(numbers.__getitem__, keys), len(names))
    found: list[tuple[RecordBatch, list[int] | None]] = []
    first = 0
    for mine in by_part:
        last = first + len(mine)
        found.append((dealt.cut(first, last, mine), dealt.sizes(first, last)))
        first = last
    return found


def _places(keys: list[Any], table: Sequence[int], nobody: int) -> list[int]:
    """The destination of each record, by a table of tablets; skipped ones have none."""
    distinct = dict.fromkeys(keys)  # a digest of each record takes 1.14 times the CPU with 1,000 keys
    skipped = distinct.pop(SKIP, nobody) is None
    places: dict[Any, int] = {
        key: table[tablet]
        for key, tablet in zip(distinct, tablets_of(list(distinct), len(table)), strict=True)
    }
    if skipped:
        places[SKIP] = nobody
    return list(map(places.__getitem__, keys))


# More than the intervals of a level and the levels of a graph, so that sink shards are unique.
_SHARDS_A_LEVEL = 1 << 14
_SHARDS_A_STREAM = 1 << 20


def diverted(record: Record, message: str, cause: BaseException | None) -> RecordBatch:
    """A record for an errors stream: its key, timestamp, error and value.

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
