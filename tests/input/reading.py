"""Files to read, and ways to read them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import millwheel as mw


def jsonl(path: Path, values: Iterable[Any], *, end: str = "\n") -> Path:
    """Writes values as JSON lines, gzipped where the name says so."""
    return write(path, "\n".join(json.dumps(value) for value in values) + end)


def csv_file(path: Path, rows: Iterable[Iterable[Any]]) -> Path:
    """Writes rows as CSV; the first one is the header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return write(path, text.getvalue())


def write(path: Path, text: str | bytes) -> Path:
    """Writes a file, gzipped where the name says so."""
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def append(path: Path, text: str) -> None:
    """Adds to the end of a file."""
    with open(path, "ab") as file:
        file.write(text.encode())


def opened(injector: mw.injectors.Files, *, follow: bool = False) -> mw.injectors.Files:
    """An injector as a driver has opened it."""
    injector.open(follow=follow)
    return injector


def read_all(injector: mw.Injector) -> list[mw.Record]:
    """What all partitions hold, one after the other."""
    records: list[mw.Record] = []
    for partition, end in injector.poll().items():
        records += injector.read(partition, None, end)
    return records


def path_of(partition: str) -> str:
    """The path in the name of a file's partition."""
    return partition.rpartition("#")[0]


class Follower:
    """Reads what is new at each look, as a driver does."""

    def __init__(self, injector: mw.Injector) -> None:
        self.injector = injector
        self.offsets: dict[str, Any] = {}

    def look(self) -> list[mw.Record]:
        """The records that came since the last look."""
        records: list[mw.Record] = []
        for partition, end in self.injector.poll().items():
            start = self.offsets.get(partition)
            if start != end:
                records += self.injector.read(partition, start, end)
                self.offsets[partition] = end
        return records


def values(records: Iterable[mw.Record]) -> list[Any]:
    """The values alone."""
    return [record.value for record in records]
