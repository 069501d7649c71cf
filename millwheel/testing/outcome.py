"""The outcome of a simulated run, and its comparison with an undisturbed one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millwheel.model.codec import pack
from millwheel.model.record import Record
from millwheel.store.row import Row


@dataclass
class Simulated:
    """The outcome of a run."""

    outputs: dict[str, list[Record]]
    """By stream: its records, in the order of the epochs."""
    states: dict[str, dict[str, Any]]
    """By computation and key: the state."""
    rows: dict[str, dict[str, Row]]
    """By computation and key: the row, with timers and holds."""
    happened: Counter[str] = field(default_factory=Counter)
    """By fault: how often it happened."""
    epochs: int = 0


def compare(expected: Simulated, found: Simulated) -> None:
    """Compares records and states of two runs; the epoch of a record does not matter."""
    for stream, records in expected.outputs.items():
        wanted, got = _counted(records), _counted(found.outputs[stream])
        if wanted != got:
            raise AssertionError(
                f"stream {stream!r}: {_some(wanted - got, 'lost')}{_some(got - wanted, 'doubled or wrong')}"
            )
    for name, rows in expected.rows.items():
        for key in sorted(rows.keys() | found.rows[name].keys()):
            if rows.get(key) != found.rows[name].get(key):
                raise AssertionError(
                    f"computation {name!r}, key {key!r}: the row is {found.rows[name].get(key)}, "
                    f"undisturbed it is {rows.get(key)}"
                )


def _counted(records: Iterable[Record]) -> Counter[tuple[str, int, bytes]]:
    return Counter((record.key, record.timestamp, pack(record.value)) for record in records)


def _some(records: Counter[tuple[str, int, bytes]], what: str) -> str:
    if not records:
        return ""
    return f"{sum(records.values())} {what}, one of them {next(iter(records))}; "
