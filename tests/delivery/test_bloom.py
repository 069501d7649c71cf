"""The filter before the seen IDs: never wrong about an ID that was seen, and rarely about a new one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import millwheel as mw
from millwheel.store.keyspace import DIGEST, id_log_prefix, time_bytes
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.memory import MemoryShard
from millwheel.watch.metrics import exposition
from millwheel.watch.view import look
from millwheel.worker.bloom import Bloom, IdFilter
from tests.store.driving import run


def _digest(number: int) -> bytes:
    return xxhash.xxh3_128_digest(number.to_bytes(8, "big"))


def _digests(numbers: range) -> bytes:
    return b"".join(map(_digest, numbers))


@given(st.lists(st.binary(min_size=DIGEST, max_size=DIGEST), max_size=200))
def test_what_was_added_is_found(digests: list[bytes]) -> None:
    bloom = Bloom(10)
    bloom.add(b"".join(digests))
    assert all(bloom.may_have(b"".join(digests)))


def test_what_was_not_added_is_rarely_found_while_there_is_room() -> None:
    bloom = Bloom(100_000)
    bloom.add(_digests(range(bloom.room)))
    wrong = sum(bloom.may_have(_digests(range(10_000_000, 10_100_000))))
    assert wrong < 2_000
    assert wrong / 100_000 == pytest.approx(bloom.error, rel=0.5)


def _log(shard: MemoryShard, epoch: int, now: int, retention: int, digests: bytes) -> None:
    key = id_log_prefix(3) + time_bytes(now + retention) + epoch.to_bytes(8, "big") + bytes((0, 0))
    shard.write([(key, digests)])


def test_it_catches_up_with_what_other_workers_logged_whatever_the_retentions() -> None:
    shard, source = MemoryShard([]), random.Random(1)
    filters = [IdFilter(3) for _ in range(3)]
    retentions = (100, 10_000, 10_001)
    logged, now = b"", 0
    for epoch in range(1, 60):
        now += source.choice((0, 1, 500))  # a clock may stand still between epochs
        for one in filters:
            if source.random() < 0.5:
                one.bring_up(shard, epoch, now, retentions)
                assert all(one.bloom.may_have(logged))
        retention = source.choice(retentions)
        digests = _digests(range(epoch * 100, epoch * 100 + source.randrange(20)))
        _log(shard, epoch, now, retention, digests)
        logged += digests


def test_it_grows_with_what_is_logged() -> None:
    shard, one = MemoryShard([]), IdFilter(3)
    one.bring_up(shard, 1, 0, (10,))
    room = one.bloom.room
    for epoch in range(1, 5):
        _log(shard, epoch, epoch, 10, _digests(range(epoch * room, (epoch + 1) * room)))
    one.bring_up(shard, 5, 5, (10,))
    assert one.bloom.room > 4 * room
    assert one.bloom.error < 0.02


class Counts(mw.Computation):
    """Counts what is delivered to it."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1


def test_new_ids_cost_no_look_at_the_store_and_seen_ones_are_dropped(tmp_path: Path) -> None:
    records = [mw.Record(key=f"k{i % 7}", value=None, timestamp=i, id=i) for i in range(5_000)]
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Records([*records, *records[:500], *records], per_epoch=1_000))
    p.add(Counts(), inputs={"in": mw.by_key})
    report = run(p, LmdbStore(tmp_path / "store", shards=2), slots=2)
    assert report.records["Counts"] == 5_000
    assert report.duplicates["Counts"] == 5_500
    assert report.ids_filtered["Counts"] > 0.95 * 5_000
    assert report.ids_filtered["Counts"] + report.ids_read["Counts"] == 10_500
    assert report.filter_bytes["Counts"] > 0
    assert 0 < report.filter_error["Counts"] < 0.01


def test_the_metrics_tell_how_the_filter_does(tmp_path: Path) -> None:
    records = [mw.Record(key=f"k{i % 7}", value=None, timestamp=i, id=i) for i in range(500)]
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Records([*records, *records[:100]], per_epoch=300))
    p.add(Counts(), inputs={"in": mw.by_key})
    run(p, LmdbStore(tmp_path / "store", shards=2), slots=2)
    store = LmdbStore(tmp_path / "store")
    text, _ = exposition(look(store, 0))
    store.close()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.labels.get("computation") == "Counts"
    }
    assert found["millwheel_ids_filtered_total"] + found["millwheel_ids_read_total"] == 600
    assert found["millwheel_ids_read_total"] >= 100
    assert found["millwheel_id_filter_bytes"] > 0
    assert 0 < found["millwheel_id_filter_error_ratio"] < 0.01
