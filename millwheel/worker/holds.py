"""Ends the remaining holds: the last epoch of a run that closes (semantics 9)."""

from __future__ import annotations

from millwheel.store.base import Snapshot
from millwheel.store.keyspace import KIND_HOLD, row_prefix
from millwheel.store.row import decode_row, encode_row
from millwheel.worker.timer_index import BYTES, HOLDS, ROWS, Tablets


class EndedHolds:
    """Removes the holds of a computation in an interval; no hook runs in the step."""

    def __init__(self, number: int, tablets: Tablets, snapshot: Snapshot) -> None:
        self.puts: list[tuple[bytes, bytes]] = []
        self.deletes: list[bytes] = []
        self.count = 0
        prefix = row_prefix(number)
        for suffix, first in tablets.pending(snapshot, KIND_HOLD):
            data = snapshot.get(prefix + suffix)
            assert data is not None, "the index has no entry without a row"
            self._end(prefix, suffix, data, tablets)
            tablets.change(KIND_HOLD, suffix, first, None)

    def _end(self, prefix: bytes, suffix: bytes, data: bytes, tablets: Tablets) -> None:
        row = decode_row(data)
        counters = tablets.of_row(suffix)
        counters[HOLDS] -= len(row.holds)
        counters[BYTES] -= len(data)
        self.count += len(row.holds)
        if row.state is None and not row.timers and not row.wall:
            counters[ROWS] -= 1
            self.deletes.append(prefix + suffix)
            return
        left = encode_row(row.state, row.timers, row.wall, {}, row.key, row.version)
        counters[BYTES] += len(left)
        self.puts.append((prefix + suffix, left))
