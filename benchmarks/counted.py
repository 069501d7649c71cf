"""Windows that systems counted, and the right ones: tens of millions of them are compared in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from benchmarks.data import KEY, LAST_KEY, SECOND, Input
from benchmarks.peers.transform_with_state import committed

_MOST_KEYS = 2**32


class Windows:
    """Counts by key and second, each window once: what a system found, or the right answer. Sorted."""

    def __init__(self, codes: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        order = np.argsort(codes)
        self._codes, self._counts = codes[order], counts[order]
        again = np.flatnonzero(self._codes[1:] == self._codes[:-1])
        if len(again):
            second, key = divmod(int(self._codes[again[0]]), _MOST_KEYS)
            raise AssertionError(f"the window of {KEY}{key} from second {second} was emitted twice")

    def __len__(self) -> int:
        return len(self._codes)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Windows)
            and np.array_equal(self._codes, other._codes)
            and np.array_equal(self._counts, other._counts)
        )

    __hash__ = None  # type: ignore[assignment]


def windows_of(keys: pa.ChunkedArray, seconds: Any, counts: Any) -> Windows:
    """The windows that a system wrote, without that of the record from the future: some do not close it."""
    codes, counted = _codes(keys, np.asarray(seconds))
    return Windows(codes, np.asarray(counts)[counted])


def _codes(keys: pa.ChunkedArray, seconds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A number for each window, from its second and the number in its key; and which of them count."""
    counted = pc.not_equal(keys, LAST_KEY)
    numbers = pc.cast(pc.utf8_slice_codeunits(keys.filter(counted), len(KEY)), pa.int64())
    mask = np.asarray(counted)
    return seconds[mask] * _MOST_KEYS + np.asarray(numbers), mask


def truth(source: Input) -> Windows:
    """The right answer, counted without any engine."""
    lines = read_lines(source.folder.glob("*.jsonl"), query=pa.string(), time=pa.int64())
    codes, _ = _codes(lines["query"], np.asarray(lines["time"]) // SECOND)
    return Windows(*np.unique(codes, return_counts=True))


def read_lines(paths: Iterable[Path], **fields: pa.DataType) -> pa.Table:
    """Fields of files of JSON lines."""
    schema = pa.schema(fields)
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    found = [
        pyarrow.json.read_json(path, parse_options=options) for path in sorted(paths) if path.stat().st_size
    ]
    return pa.concat_tables([schema.empty_table(), *found])


def of_lines(paths: Iterable[Path], key: str = "key") -> Windows:
    """Windows as the peers write them, lines of JSON; each must be there once."""
    lines = read_lines(paths, **{key: pa.string(), "window": pa.int64(), "count": pa.int64()})
    return windows_of(lines[key], lines["window"], lines["count"])


def of_operators(out: Path) -> Windows:
    """What millwheel's sink has of windows that operators made."""
    value = pa.struct({"start": pa.int64(), "count": pa.int64()})
    lines = read_lines(out.glob("part-*.jsonl"), key=pa.string(), value=value).flatten()
    return windows_of(lines["key"], np.asarray(lines["value.start"]) // SECOND, lines["value.count"])


def of_computation(out: Path) -> Windows:
    """What millwheel's sink has of a computation; a window's timestamp is its end."""
    fields = {"key": pa.string(), "timestamp": pa.int64(), "value": pa.int64()}
    lines = read_lines(out.glob("part-*.jsonl"), **fields)
    return windows_of(lines["key"], np.asarray(lines["timestamp"]) // SECOND - 1, lines["value"])


def of_spark(work: Path) -> Windows:
    """What Structured Streaming wrote, as its commit log has it."""
    return of_lines(committed(work / "out" / "_spark_metadata"), key="query")
