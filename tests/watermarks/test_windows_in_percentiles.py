"""A window that is kept as a column counts in a percentile once for each of its keys (semantics 13)."""

from __future__ import annotations

import millwheel as mw
from millwheel.master.ending import Ending
from millwheel.store.keyspace import row_prefix
from millwheel.store.open import open_store
from millwheel.watermark.percentile import passed
from millwheel.worker.pending import pending_of
from millwheel.worker.timer_index import Tablets
from tests.store.driving import run


def test_the_end_of_a_window_counts_once_for_each_of_its_keys() -> None:
    p = mw.Pipeline("percentile")
    times = [5] * 30 + [105] * 70
    records = [mw.Record(value={"k": f"k{n}"}, timestamp=time) for n, time in enumerate(times)]
    stream = p.inject("in", mw.injectors.Records(records))
    stream.key_by("k").window(mw.windows.sliding(300, 100)).count("out")
    store = open_store("memory:")
    run(p, store, ending=Ending.LEAVE_OPEN)
    parts = []
    for number, shard in enumerate(store.shards):
        mine = range(number * 64 // len(store.shards), (number + 1) * 64 // len(store.shards))
        with shard.snapshot() as snapshot:
            assert all(key.startswith(row_prefix(0)) for key, _ in snapshot.scan(b"R", b"S"))
            tablets = Tablets(0, mine, snapshot, 64)
            parts.append(
                pending_of(tablets, snapshot, 0, {}, None, bound=500, before=300, lowest=0.2, holds=True)
            )
    # At 105 the windows are open that end at 200 and at 300, with 100 keys, and at 400, with 70.
    assert sum(part.total for part in parts) == 270
    assert [passed(parts, p) for p in (0.9, 0.5, 0.2)] == [(200, True), (300, True), (400, True)]
