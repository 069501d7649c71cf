"""Injection: reads ranges of partitions and routes their records (stage 0)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from millwheel.errors import InputError, MillWheelError, shorten
from millwheel.model.batch import BadInput, RecordBatch, join
from millwheel.model.codec import pack
from millwheel.model.field_columns import FieldColumns
from millwheel.model.folding import folding_of
from millwheel.model.graph import Graph
from millwheel.model.injector import FieldNames
from millwheel.model.keys import By, ByKey
from millwheel.model.names import WatermarkName
from millwheel.model.pipeline import ERRORS_SUFFIX, Source
from millwheel.model.record import Record, RecordId
from millwheel.model.time import MAX_TIME, MIN_TIME
from millwheel.watermark.percentile import is_of
from millwheel.watermark.source import Read, read_mark
from millwheel.worker.plan import Plan, Range
from millwheel.worker.report import IntervalReport
from millwheel.worker.route import Router
from millwheel.worker.side_tables import SideTables
from millwheel.worker.unseen_fields import UnseenFields

_ROUTED_AT_ONCE = 60_000  # records: enough to pack well, few enough for the CPU cache


class Injection:
    """One task's reading. It writes nothing: a failed attempt is retried."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        task: int,
        unseen: UnseenFields | None = None,
        side_tables: SideTables | None = None,
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._task = task
        self._unseen = unseen
        self._side_tables = side_tables
        self.report = IntervalReport(0, task, 0)
        self.marks: dict[WatermarkName, tuple[int, int]] = {}
        """By injector: the watermark of the input read here, and its newest timestamp."""
        self.sections: list[tuple[int, int, bytes]] = []
        self.batches: list[bytes] = []

    def run(self) -> None:
        """Reads the ranges of this task, injector by injector."""
        started = time.perf_counter()
        for source in self._graph.sources:
            ranges = [r for r in self._plan.ranges if r.task == self._task and r.source == source.name]
            if ranges:
                self._run_source(source, ranges)
        self.report.seconds = time.perf_counter() - started

    def _run_source(self, source: Source, ranges: list[Range]) -> None:
        errors = source.stream + ERRORS_SUFFIX if source.injector.errors == "divert" else None
        shard = self._shard(source)
        router = Router(self._graph, self._plan, 0, shard, errors, self._unseen, self._side_tables)
        reads: list[Read] = []
        pending: list[RecordBatch] = []
        columns: list[FieldColumns] = []
        waiting = 0
        fields = needed_fields(self._graph, source.stream)
        for item in ranges:
            top, count = item.newest, 0
            for batch in _batches(source, item, fields):
                if not isinstance(batch, RecordBatch):
                    oldest, newest = int(batch.timestamps.min()), int(batch.timestamps.max())
                    if oldest > MIN_TIME:
                        count, top = count + len(batch), max(top, newest)
                        columns.append(batch)
                        if sum(map(len, columns)) >= _ROUTED_AT_ONCE:
                            self._send_columns(source, item, columns, router)
                            columns = []
                        continue
                    batch = batch.records()
                count += len(batch.timestamps)
                bad = _check(batch)
                if bad or batch.bad:
                    batch = self._divert(source, item, batch.decoded(), bad, router)
                if batch.timestamps:
                    top = max(top, max(batch.timestamps))
                    pending.append(batch)
                    waiting += len(batch)
                if waiting >= _ROUTED_AT_ONCE:
                    self._send(source, item, join(pending), router)
                    pending, waiting = [], 0
            reads.append(Read(item.partition, item.watermark, top, item.last))
            self.report.records_in += count
            self.report.newest.append([source.name, item.partition, top, count])
        if columns:
            self._send_columns(source, ranges[-1], columns, router)
        self._send(source, ranges[-1], join(pending), router)
        router.finish()
        for each in self._plan.sources:
            if is_of(each, source.name):
                self.marks[each] = read_mark(reads, source.injector.slack, self._plan.ignored.get(each, ()))
        self.sections += router.sections
        self.batches += router.batches
        self.report.unseen_fields += router.unseen_fields
        for stream, count in router.streams.items():
            self.report.streams[stream] = self.report.streams.get(stream, 0) + count
        for name, count in router.failed.items():
            self.report.failed[name] = self.report.failed.get(name, 0) + count

    def _shard(self, source: Source) -> int:
        return self._graph.sources.index(source) * max(self._plan.tasks, 1) + self._task

    def _send(self, source: Source, item: Range, batch: RecordBatch, router: Router) -> None:
        """Routes records; those that cannot be encoded are removed first."""
        mark = router.mark()
        try:
            router.inject(source, source.stream, batch)
        except MillWheelError:
            raise
        except Exception:
            router.rollback(mark)
            batch = batch.decoded()
            bad = {index: text for index, value in enumerate(batch.values) if (text := _unpackable(value))}
            bad |= {i: _LARGE.format(shorten(id)) for i, id in enumerate(batch.ids or ()) if _is_large(id)}
            if not bad:
                raise
            router.inject(source, source.stream, self._divert(source, item, batch, bad, router))

    def _send_columns(self, source: Source, item: Range, columns: list[FieldColumns], router: Router) -> None:
        """Routes columns as partial aggregates, or as records if one is needed."""
        for whole in columns[0].join(columns[1:]) if len(columns) > 1 else columns:
            if not router.inject_columns(source, source.stream, whole):
                self._send(source, item, whole.records(), router)

    def _divert(
        self, source: Source, item: Range, batch: RecordBatch, bad: dict[int, str], router: Router
    ) -> RecordBatch:
        """Removes bad input from a batch, to the errors stream or as an `InputError`."""
        found = list(batch.bad)
        for index, message in bad.items():
            found.append(BadInput(message, batch.values[index]))
        first = found[0]
        if source.injector.errors != "divert":
            raise InputError(
                f"stream {source.stream!r}, partition {item.partition!r}: {first.message}: "
                f'{shorten(first.value)}; fix the input, or give the injector errors="divert" to have '
                f"such input on the stream {source.stream + ERRORS_SUFFIX!r}"
            )
        self.report.input_errors += 0 if source.reader else len(found)  # counted at the first reading
        self.report.records_in += len(batch.bad)
        values = [
            {"error": item_bad.message, "value": _safe(item_bad.value), "partition": item.partition}
            for item_bad in found
        ]
        router.inject(
            source,
            source.stream + ERRORS_SUFFIX,
            RecordBatch([self._plan.now] * len(values), values),
        )
        good = batch.take([i for i in range(len(batch)) if i not in bad])
        good.json = None
        return good


def needed_fields(graph: Graph, stream: str) -> FieldNames | None:
    """The fields that consumers use as keys; None if one needs whole values.

    Includes the fields that windows aggregate before the records are sent.
    """
    extractors = [edge.extractor for edge in graph.consumers[stream]]
    if (
        stream in graph.sinks
        or stream in graph.derived
        or any(not isinstance(extractor, By | ByKey) for extractor in extractors)
    ):
        return None
    found = [extractor for extractor in extractors if isinstance(extractor, By)]
    if not all(extractor.plain for extractor in found):
        return None  # a nested field needs the whole value
    folded = [folding_of(graph.nodes[edge.consumer].computation) for edge in graph.consumers[stream]]
    optional = {field for folding in folded if folding is not None for field in folding.fields or ()}
    columns = all(folding is not None and folding.fields is not None for folding in folded)
    columns = columns and bool(found) and len(found) == len(extractors)
    names = {field for extractor in found for field in extractor.fields}
    return FieldNames(names, optional, columns=columns)


def _batches(source: Source, item: Range, fields: FieldNames | None) -> Iterable[RecordBatch | FieldColumns]:
    injector = source.injector
    if fields is None:
        batches: Iterable[RecordBatch | FieldColumns] | None
        batches = injector.read_batches(item.partition, item.start, item.end)
    else:
        batches = injector.read_fields(item.partition, item.start, item.end, fields)
    if batches is not None:
        return batches
    return _in_columns(injector.read(item.partition, item.start, item.end), source)


def _in_columns(records: Iterable[Record], source: Source) -> Iterable[RecordBatch]:
    """The records of a user's own injector, checked one by one."""
    timestamps: list[int] = []
    values: list[Any] = []
    ids: list[Any] = []
    keys: list[str] = []
    bad: list[BadInput] = []
    for record in records:
        if not isinstance(record, Record):
            bad.append(
                BadInput(
                    f"{type(source.injector).__name__}.read returned something other than a millwheel.Record",
                    record,
                )
            )
            continue
        try:
            pack(record.value)  # finds values that cannot be sent while the record is known
        except Exception as error:
            bad.append(BadInput(f"the value cannot be encoded ({error})", record))
            continue
        if record.id is not None and (
            isinstance(record.id, bool) or not isinstance(record.id, str | int | bytes)
        ):
            bad.append(
                BadInput(f"the ID is {shorten(record.id)}: an ID is a text, an integer or bytes", record)
            )
            continue
        if _is_large(record.id):
            bad.append(BadInput(_LARGE.format(shorten(record.id)), record))
            continue
        if not isinstance(record.key, str):
            bad.append(BadInput(f"the key is {record.key!r}, which is not a str", record))
            continue
        timestamps.append(record.timestamp)
        values.append(record.value)
        ids.append(record.id)
        keys.append(record.key)
    yield RecordBatch(timestamps, values, ids if any(id is not None for id in ids) else None, keys, bad)


def _check(batch: RecordBatch) -> dict[int, str]:
    """By position: the error of a timestamp."""
    timestamps = batch.timestamps
    if not timestamps:
        return {}
    if set(map(type, timestamps)) == {int} and min(timestamps) > MIN_TIME and max(timestamps) <= MAX_TIME:
        return {}
    bad = {}
    for index, found in enumerate(timestamps):
        if type(found) is not int:
            bad[index] = f"the timestamp {found!r} is not an integer (microseconds since 1970)"
        elif not MIN_TIME < found <= MAX_TIME:
            bad[index] = f"the timestamp {found} is out of the range of 64 bits"
    return bad


_LARGE = "the ID {} is an integer of more than 64 bits: give it as a text"


def _is_large(id: RecordId | None) -> bool:
    return isinstance(id, int) and not -(2**63) <= id < 2**64


def _unpackable(value: Any) -> str | None:
    try:
        pack(value)
        return None
    except Exception as error:
        return f"the value cannot be encoded ({error})"


def _safe(value: Any) -> Any:
    try:
        pack(value)
        return value
    except Exception:
        return shorten(value)
