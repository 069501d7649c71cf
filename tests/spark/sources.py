"""An injector and a sink written against the two base classes alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import millwheel as mw


class Feed(mw.Injector):
    """Partitions of records, of which a driver may open more and more; offsets are counts."""

    def __init__(self, partitions: Mapping[str, Sequence[mw.Record]], *, opened: int | None = None) -> None:
        self.partitions = {name: list(records) for name, records in partitions.items()}
        longest = max(len(records) for records in self.partitions.values())
        self.opened = longest if opened is None else opened
        self.ended = opened is None
        self.committed: dict[str, Any] = {}

    def poll(self) -> Mapping[str, Any]:
        return {name: min(self.opened, len(records)) for name, records in self.partitions.items()}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[mw.Record]:
        yield from self.partitions[partition][start or 0 : end]

    def low_watermark(self, partition: str, offset: Any) -> int:
        rest = self.partitions[partition][offset or 0 :]
        if not rest:
            return mw.MAX_TIME if self.ended else self.partitions[partition][-1].timestamp
        return min(record.timestamp for record in rest)

    def commit(self, offsets: Mapping[str, Any]) -> None:
        self.committed.update(offsets)


class Folder(mw.Sink):
    """A file for each epoch and shard, so that a second write of the same replaces the first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        lines = [[record.key, record.value, record.timestamp] for record in records]
        (self.path / f"{epoch}-{shard}.json").write_text(json.dumps(lines))

    def lines(self) -> list[Any]:
        """Everything that is there."""
        return [line for path in sorted(self.path.glob("*.json")) for line in json.loads(path.read_text())]
