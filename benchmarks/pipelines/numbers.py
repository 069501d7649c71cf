"""Numbers the records of each key, and stamps them when they are on the disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import millwheel as mw


class Numberer(mw.Computation):
    """Emits every record with its number among its key's."""

    def process_record(self, record: mw.Record) -> None:
        self.state["count"] = number = self.state.get("count", 0) + 1
        value = record.value
        self.produce("numbered", {"number": value["number"], "sent": value["sent"], "count": number})


class Stamped(mw.Sink):
    """Writes records, and when they were on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, epoch: int, shard: int, records: Sequence[mw.Record]) -> None:
        pairs = [(record.value["number"], record.value["sent"]) for record in records]
        write_stamped(self._folder / f"part-{epoch}-{shard}", pairs)


def write_stamped(path: Path, pairs: Iterable[tuple[int, int]]) -> None:
    """Writes (number, sent), makes it durable, and only then looks at the clock; the same for each system."""
    with open(path.with_suffix(".data"), "w") as file:
        json.dump(list(pairs), file)
        file.flush()
        os.fsync(file.fileno())
    moment = time.time_ns() // 1_000
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(moment))
    os.replace(temporary, path.with_suffix(".time"))


class Relay(mw.Computation):
    """A further stage: counts its key's records, and passes them on."""

    def __init__(self, stream: str) -> None:
        self._stream = stream

    def process_record(self, record: mw.Record) -> None:
        self.state["count"] = self.state.get("count", 0) + 1
        self.produce(self._stream, record.value)


def _by_number(record: mw.Record) -> str:
    return f"number-{record.value['number'] % _OTHER_KEYS}"


_OTHER_KEYS = 97  # so that every further stage has its records from all keys of the one before


def pipeline(
    source: Path, out: Path, *, stages: int = 1, injector: mw.Injector | None = None, weak: bool = False
) -> mw.Pipeline:
    """The stage on millwheel, and further ones behind it, each keyed another way."""
    p = mw.Pipeline("latency")
    files = mw.injectors.Files(
        source / "*.jsonl", timestamp="time", id=None if weak else "number", follow=True
    )
    p.inject("queries", injector or files)
    p.add(
        Numberer(),
        inputs={"queries": mw.by("query")},
        outputs=["numbered"],
        exactly_once=not weak,
        strong_productions=not weak,
    )
    last = "numbered"
    for number in range(2, stages + 1):
        by = _by_number if number % 2 == 0 else _by_count
        p.add(
            Relay(f"relayed-{number}"),
            name=f"Relay{number}",
            inputs={last: by},
            outputs=[f"relayed-{number}"],
        )
        last = f"relayed-{number}"
    p.sink(last, Stamped(out))
    return p


def _by_count(record: mw.Record) -> str:
    return f"count-{record.value['count'] % _OTHER_KEYS}"
