"""A store has a number of tablets of its own; a pipeline does the same with any, and goes on with another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.cli import main
from millwheel.errors import PipelineError, StoreError
from millwheel.master.driver import Driver
from millwheel.model.codec import pack, unpack
from millwheel.store.base import Store
from millwheel.store.keyspace import JournalKey
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.memory import MemoryStore
from millwheel.store.open import open_existing, open_store
from millwheel.store.tools.check import check
from millwheel.store.tools.copy import copy
from millwheel.store.tools.export import states, timers
from millwheel.watch.key_view import inspect
from tests.store.driving import contents, run, run_to_the_end, take
from tests.store.every_kind import KEYS, output, pipeline

pytestmark = pytest.mark.slow

MakeStore = Callable[..., Store]

_BY_EARLIER_VERSIONS = "5c86b480fe6eecbc90603b1ac927af2de48c94e4537d8d1dfd39494a5003835d"
"""A digest of the shards that the version before this one made of the pipeline, after two epochs."""


@pytest.fixture(scope="module")
def right() -> list[str]:
    """The output of an undisturbed run with 64 tablets."""
    sink = mw.sinks.Collect()
    run(pipeline(sink), MemoryStore())
    assert {line.split(",")[0] for line in output(sink)} == {"('out'", "('ordered'", "('sums'"}
    return output(sink)


def _epochs(driver: Driver, executor: object, count: int) -> None:
    for _ in range(count):
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)  # type: ignore[arg-type]


def _begin(store: Store, sink: mw.Sink, epochs: int, **options: int) -> None:
    driver, executor = take(pipeline(sink), store, **options)
    _epochs(driver, executor, epochs)
    driver.let_go()


def _end(store: Store, sink: mw.Sink, slots: int) -> mw.Report:
    driver, executor = take(pipeline(sink), store, slots=slots, takeover=True)
    report = run_to_the_end(driver, executor)
    driver.let_go()
    return report


@pytest.mark.parametrize(("shards", "tablets", "slots"), [(2, 128, 3), (4, 1_024, 5), (16, 4_096, 20)])
def test_a_pipeline_does_the_same_with_any_number_of_tablets(
    make_store: MakeStore, right: list[str], shards: int, tablets: int, slots: int
) -> None:
    store, sink = make_store(shards, tablets), mw.sinks.Collect()
    assert store.tablets == tablets
    _begin(store, sink, 2, slots=slots, compact_below=0)
    assert check(store).problems == []
    driver, executor = take(pipeline(sink), store, slots=slots, compact_below=0, takeover=True)
    driver.rescale(slots + 20)
    _epochs(driver, executor, 1)
    driver.lay_out(
        {1: ([[0, 0], [tablets // 2 + 1, 1], [tablets // 2 + 2, 0], [tablets - 1, 2]], "one alone")}
    )
    run_to_the_end(driver, executor)
    assert output(sink) == right
    assert check(store).problems == []


@pytest.mark.parametrize("often", [0, 8])
def test_many_records_are_sent_by_parts_that_several_intervals_share(
    right: list[str], often: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.worker.route.MANY", 4)
    monkeypatch.setattr("millwheel.worker.route.OFTEN", often)
    monkeypatch.setattr("millwheel.worker.route.WORTH_IT", 10**9)
    for tablets, slots in ((64, 2), (1_024, 3), (1_024, 80)):
        store, sink = MemoryStore(16, tablets), mw.sinks.Collect()
        driver, executor = take(pipeline(sink), store, slots=slots, compact_below=0)
        run_to_the_end(driver, executor)
        assert output(sink) == right
        assert check(store).problems == []


@pytest.mark.parametrize(
    ("before", "between", "after"),
    [((1, 64), (16, 4_096), (2, 64)), ((4, 1_024), (2, 128), (8, 512)), ((64, 4_096), (1, 64), (4, 64))],
)
def test_a_pipeline_goes_on_with_another_number_of_tablets(
    make_store: MakeStore,
    right: list[str],
    before: tuple[int, int],
    between: tuple[int, int],
    after: tuple[int, int],
) -> None:
    sink = mw.sinks.Collect()
    one = make_store(*before)
    _begin(one, sink, 2, slots=3, compact_below=0)
    for number, shape in enumerate((between, after), start=1):
        other = make_store(*shape)
        had = check(one).counts
        done = copy(one, other)
        assert (done.shards, done.tablets) == shape
        assert check(other).problems == []
        found = check(other).counts
        for what in ("keys in windows", "watermark timers", "wall timers", "holds", "records that wait"):
            assert found[what] == had[what] > 0, what
        marks = _lows(one)
        driver, executor = take(pipeline(sink), other, slots=2 + number, compact_below=0)
        assert not driver.layout.settled
        _epochs(driver, executor, 1)
        assert all(_lows(other)[name] >= mark for name, mark in marks.items())
        driver.let_go()
        assert check(other).problems == []
        one = other
    report = _end(one, sink, 4)
    assert report.duplicates["Windows"] > 0
    assert output(sink) == right


def _lows(store: Store) -> dict[str, int]:
    with store.journal.snapshot() as snapshot:
        commit = unpack(snapshot.get(JournalKey.COMMIT) or b"")
    return {name: marks[1] for name, marks in commit[2].items()}


def test_what_a_slow_step_left_goes_with_a_copy(right: list[str]) -> None:
    sink, store = mw.sinks.Collect(), MemoryStore(2, 256)
    _begin(store, sink, 1, slots=2, step_budget=0)
    assert any(key[:1] == b"B" for shard in store.shards for key in contents(shard))
    for shards, tablets in ((4, 1_024), (1, 64), (2, 256)):
        other = MemoryStore(shards, tablets)
        copy(store, other)
        assert check(other).problems == []
        assert check(other).counts["records that wait"] == check(store).counts["records that wait"] > 0
        store = other
    _end(store, sink, 2)
    assert output(sink) == right


def test_an_epoch_that_was_begun_is_finished_with_the_tablets_that_it_has() -> None:
    source, target = MemoryStore(2, 64), MemoryStore(2, 128)
    driver, _ = take(pipeline(mw.sinks.Collect()), source, slots=2)
    plan = driver.next_plan()
    assert plan is not None
    driver.journal.plan(plan, driver.graph)
    with pytest.raises(
        StoreError, match="epoch 1 was begun and is not finished, and the other store has 2 sh"
    ):
        copy(source, target)
    assert not contents(target.shards[0])


def test_a_key_and_a_table_are_found_in_a_store_with_many_tablets(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, shards=16, tablets=4_096)
    _begin(store, mw.sinks.Collect(), 3, slots=3)
    seen = [inspect(store, name, "k7") for name in ("Windows", "sums")]
    assert [view.found for view in seen] == [True, True]
    assert {view.tablet // 256 for view in seen} == {view.shard for view in seen}
    found = {(name, key) for name, key, *_ in states(store, {}, range(4_096))}
    assert {("Windows", f"k{number}") for number in range(KEYS)} <= found
    assert ("sums", "k7") in found
    assert {kind for _, _, kind, _, _ in timers(store, range(4_096))} == {
        "watermark",
        "wall",
        "hold",
        "record",
    }
    store.close()


def test_a_store_of_64_tablets_is_what_it_was_before_there_were_others(tmp_path: Path) -> None:
    with closing(LmdbStore(tmp_path, shards=2)) as store:
        _begin(store, mw.sinks.Collect(), 2, slots=2)
        digest = hashlib.sha256()
        for shard in store.shards:
            for key, value in sorted(contents(shard).items()):
                digest.update(key + value if key[:1] not in b"MP" else key)
        assert contents(store.journal)[JournalKey.FORMAT] == pack(3)
    made = json.loads((tmp_path / "store.json").read_text())
    assert made.keys() == {"format", "shards", "id", "checksum"}
    assert made["format"] == 2
    assert digest.hexdigest() == _BY_EARLIER_VERSIONS


def test_a_store_with_other_tablets_is_of_a_format_that_earlier_versions_refuse(
    make_store: MakeStore,
) -> None:
    store = make_store(2, 128)
    _begin(store, mw.sinks.Collect(), 1, slots=2)
    with store.journal.snapshot() as snapshot:
        assert snapshot.get(JournalKey.FORMAT) == pack(4)
    if store.address.startswith("memory:"):
        return
    store.close()
    with closing(open_existing(store.address)) as again:
        assert (len(again.shards), again.tablets) == (2, 128)
    with closing(open_store(store.address, shards=1, tablets=64)) as again:
        assert again.tablets == 128, "it has its own"
        again.journal.write([(JournalKey.FORMAT, pack(3))])  # as an earlier version would
    with pytest.raises(StoreError, match="has 128 tablets, which is format 4, and its journal has format 3"):
        open_existing(store.address)


def test_the_manifest_says_that_there_are_other_tablets(tmp_path: Path) -> None:
    LmdbStore(tmp_path, shards=4, tablets=1_024).close()
    made = json.loads((tmp_path / "store.json").read_text())
    assert (made["format"], made["shards"], made["tablets"]) == (3, 4, 1_024)


@pytest.mark.parametrize(
    ("shards", "tablets", "why"),
    [
        (1, 100, "a power of two from 64 to 4096, not 100"),
        (1, 32, "a power of two from 64 to 4096, not 32"),
        (64, 8_192, "a power of two from 64 to 4096, not 8192"),
        (8, 4_096, "a store with 4096 tablets has from 16 to 4096 shards, not 8"),
        (128, 64, "a store with 64 tablets has from 1 to 64 shards, not 128"),
    ],
)
def test_a_number_of_tablets_that_cannot_be_is_refused(
    make_store: MakeStore, tmp_path: Path, shards: int, tablets: int, why: str
) -> None:
    with pytest.raises(StoreError, match=why):
        make_store(shards, tablets)
    assert not list(tmp_path.glob("store-*"))
    assert not list(tmp_path.glob("objects-*/*.json"))


def test_more_slots_than_tablets_are_refused_with_what_to_do() -> None:
    with pytest.raises(PipelineError, match=r"64 tablets, .* 64 slots at most, not 65: copy .* --tablets"):
        take(pipeline(mw.sinks.Collect()), MemoryStore(64), slots=65)


def test_the_command_copies_to_other_tablets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(LmdbStore(tmp_path / "a", shards=2)) as store:
        _begin(store, mw.sinks.Collect(), 1, slots=2)
    one, other, third = (str(tmp_path / name) for name in "abc")
    assert main(["store", "copy", one, other, "--tablets", "4096"]) == 0
    assert "in 16 shards and 4096 tablets" in capsys.readouterr().out
    assert main(["store", "copy", other, third, "--tablets", "64", "--shards", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tablets"] == 64
    for place in (one, other, third):
        assert main(["store", "check", place]) == 0
    assert main(["store", "copy", third, str(tmp_path / "d"), "--tablets", "100"]) == 1
    assert "a power of two from 64 to 4096, not 100" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()
