"""The states and timers of a store as tables; any table as Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from millwheel.model.codec import Codec, unpack
from millwheel.model.json_form import plain
from millwheel.model.state_codecs import decoded
from millwheel.model.time import SECOND
from millwheel.store.base import Store
from millwheel.store.keyspace import JournalKey, row_prefix, rows_range
from millwheel.store.reorder_rows import pieces
from millwheel.store.row import Row
from millwheel.store.window_row import by_key

LONGEST = 10**17
"""Microseconds: the year 5138, near the end of Python's datetime."""
SCHEMAS = {
    "state": "computation string, key string, tablet int, codec string, state string, data binary, "
    "bytes long",
    "timers": "computation string, key string, kind string, tag string, time long",
}
"""By table: its columns, in Spark's notation; times get a timestamp column, too."""
MOMENTS = {"timers": "time", "watermarks": "time", "epochs": "began"}
"""By table, of a store or its history: the column that gets a timestamp column."""

_LONGEST_STATE = 10_000_000  # characters: a table is for programs, which need all of it
_BATCH = 10_000  # rows in memory at a time


def columns_of(schema: str) -> list[tuple[str, str]]:
    """The names and types of a table's columns."""
    fields = schema.replace("<string,", "<string;").split(",")
    return [(name, kind) for name, kind in (field.strip().split(" ") for field in fields)]


def states(store: Store, codecs: dict[str, Codec], tablets: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """The rows of tablets, with their states as JSON."""
    for tablet, name, key, row in _rows(store, tablets):
        codec, text = None, None
        if row.state is not None:
            codec, state = decoded(row.state, codecs.get(name))
            text = json.dumps(plain(state, _LONGEST_STATE), ensure_ascii=False)
        yield name, key, tablet, codec, text, row.state, len(row.state or b"")


def timers(store: Store, tablets: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """The timers, holds and buffered records of tablets."""
    tablets = list(tablets)
    yield from _waiting(store, tablets)
    for _, name, key, row in _rows(store, tablets):
        for kind, times in (("watermark", row.timers), ("wall", row.wall), ("hold", row.holds)):
            for tag, moment in times.items():
                yield name, key, kind, tag, moment


def _waiting(store: Store, tablets: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    with store.journal.snapshot() as journal:
        numbers: dict[str, int] = unpack(journal.get(JournalKey.NUMBERS) or b"\x80")
    for tablet in tablets:
        with store.shards[tablet * len(store.shards) // store.tablets].snapshot() as snapshot:
            for name, number in numbers.items():
                for piece in pieces(snapshot, number, tablet):
                    for key, stream, time in zip(piece.keys, piece.streams, piece.timestamps, strict=True):
                        yield name, _text(key), "record", _text(stream), time


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _rows(store: Store, tablets: Iterable[int]) -> Iterator[tuple[int, str, str, Row]]:
    """The rows of tablets; code points replace what UTF-8 cannot encode in a key."""
    with store.journal.snapshot() as journal:
        numbers: dict[str, int] = unpack(journal.get(JournalKey.NUMBERS) or b"\x80")
    for tablet in tablets:
        for name, number in numbers.items():
            for key, row in by_key(_tablet(store, number, tablet), row_prefix(number)):
                yield tablet, name, _text(key), row


def _tablet(store: Store, number: int, tablet: int) -> Iterator[tuple[bytes, bytes]]:
    with store.shards[tablet * len(store.shards) // store.tablets].snapshot() as snapshot:
        yield from snapshot.scan(*rows_range(number, tablet, store.tablets))


def write_parquet(table: str, schema: str, rows: Iterable[tuple[Any, ...]], folder: str) -> int:
    """Writes a table to a folder as Parquet; returns its number of rows."""
    import pyarrow
    from pyarrow import parquet

    kinds = {
        "string": pyarrow.string(),
        "int": pyarrow.int32(),
        "long": pyarrow.int64(),
        "double": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "binary": pyarrow.binary(),
        "map<string;double>": pyarrow.map_(pyarrow.string(), pyarrow.float64()),
    }
    fields = [(name, kinds[kind]) for name, kind in columns_of(schema)]
    names = [name for name, _ in fields]
    if table in MOMENTS:
        fields.append(("timestamp", pyarrow.timestamp("us", tz="UTC")))
    if table == "watermarks":
        fields.append(("lag", pyarrow.float64()))
    arrow = pyarrow.schema(fields)
    os.makedirs(folder)
    count = 0
    waiting = iter(rows)
    with parquet.ParquetWriter(os.path.join(folder, "part-00000.parquet"), arrow) as file:
        while batch := list(islice(waiting, _BATCH)):
            columns = dict(zip(names, map(list, zip(*batch, strict=True)), strict=True))
            if table in MOMENTS:
                columns["timestamp"] = [_moment(when) for when in columns[MOMENTS[table]]]
            if table == "watermarks":
                pairs = zip(columns["time"], columns["low_watermark"], strict=True)
                columns["lag"] = [
                    None if _moment(low) is None else (now - low) / SECOND for now, low in pairs
                ]
            if "phases" in columns:
                columns["phases"] = [list(phases.items()) for phases in columns["phases"]]
            file.write_batch(pyarrow.record_batch(columns, schema=arrow))
            count += len(batch)
    return count


def _moment(when: int) -> int | None:
    return when if -LONGEST <= when <= LONGEST else None
