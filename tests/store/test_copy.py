"""`millwheel store copy`: a pipeline goes on in another store as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.cli import main
from millwheel.errors import StoreError
from millwheel.store.base import Store
from millwheel.store.open import open_store
from millwheel.store.tools.check import check
from millwheel.store.tools.copy import copy
from tests.store.driving import contents, run, run_to_the_end, take

_EPOCHS = 6
_KEYS = 40


class Windows(mw.Computation):
    """Counts in windows of three epochs; holds a time now and then."""

    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer(str(record.timestamp), record.timestamp + 3000)
        if record.value % 7 == 0:
            self.hold(record.timestamp, str(record.timestamp))

    def process_timer(self, timer: mw.Timer) -> None:
        self.release(timer.tag)
        self.produce("out", [self.key, timer.timestamp, self.state["n"]])


def _pipeline(sink: mw.Sink) -> mw.Pipeline:
    p = mw.Pipeline("moved")
    fresh = [
        [
            mw.Record(
                value=number, timestamp=1000 * epoch, key=f"k{number % _KEYS}", id=1000 * epoch + number
            )
            for number in range(50)
        ]
        for epoch in range(_EPOCHS)
    ]
    # Five of each epoch come once more, in the next one.
    records = [*fresh[0], *(record for e in range(1, _EPOCHS) for record in fresh[e] + fresh[e - 1][:5])]
    p.inject("in", mw.injectors.Records(records, per_epoch=50))
    p.add(Windows(), inputs={"in": mw.by_key}, outputs=["out"])
    p.sink("out", sink)
    return p


def _begin(store: Store, epochs: int, sink: mw.Sink, slots: int) -> None:
    driver, executor = take(_pipeline(sink), store, slots=slots)
    for _ in range(epochs):
        plan = driver.next_plan()
        assert plan is not None
        driver.run(plan, executor)
    driver.let_go()


def _output(sink: mw.sinks.Collect) -> list[object]:
    return sorted(map(str, (record.value for record in sink.records)))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 4), (4, 1), (2, 8)])
def test_a_pipeline_goes_on_where_it_was(
    make_store: Callable[..., Store],
    schema_url: str,
    before: int,
    after: int,
    request: pytest.FixtureRequest,
) -> None:
    whole = mw.sinks.Collect()
    run(_pipeline(whole), open_store("memory:"))
    sink = mw.sinks.Collect()
    source, target = make_store(before), open_store(f"{schema_url}_target", shards=after)
    request.addfinalizer(target.close)
    _begin(source, 1, sink, slots=before)
    done = copy(source, target)
    assert (done.pipeline, done.epoch, done.shards) == ("moved", 1, after)
    assert check(target).problems == []
    found, had = check(target).counts, check(source).counts
    assert {name: found[name] for name in had if name != "IDs"} == {
        name: had[name] for name in had if name != "IDs"
    }
    driver, executor = take(_pipeline(sink), target, slots=after)
    run_to_the_end(driver, executor)
    assert driver.report().duplicates["Windows"] == 5 * (_EPOCHS - 1), "all of them came after the copy"
    assert _output(sink) == _output(whole)
    assert check(target).problems == []


def test_an_epoch_that_was_begun_is_finished_in_the_copy(make_store: Callable[..., Store]) -> None:
    whole, sink = mw.sinks.Collect(), mw.sinks.Collect()
    run(_pipeline(whole), open_store("memory:"))
    source, target, other = make_store(2), make_store(2), make_store(1)
    driver, executor = take(_pipeline(sink), source, slots=2)
    plan = driver.next_plan()
    assert plan is not None
    driver.journal.plan(plan, driver.graph)
    executor.execute(plan)  # its intervals have it, the journal has not
    with pytest.raises(StoreError, match="epoch 1 was begun and is not finished"):
        copy(source, other)
    copy(source, target)
    source.close()
    driver, executor = take(_pipeline(sink), target, slots=2)
    run_to_the_end(driver, executor)
    assert _output(sink) == _output(whole)


def test_a_store_that_is_not_empty_is_not_written(make_store: Callable[..., Store]) -> None:
    source, target = make_store(1), make_store(1)
    _begin(source, 1, mw.sinks.Collect(), 1)
    target.shards[0].write([(b"Rsomething", b"of others")])
    with pytest.raises(StoreError, match="is not empty"):
        copy(source, target)
    assert contents(target.shards[0]) == {b"Rsomething": b"of others"}


class _Interrupted(BaseException):
    """The process that copies is killed."""


def _interrupt(entries: int) -> None:
    raise _Interrupted


def test_a_copy_that_was_interrupted_says_so_and_does_not_run(make_store: Callable[..., Store]) -> None:
    source, target = make_store(1), make_store(1)
    _begin(source, 2, mw.sinks.Collect(), 1)
    with pytest.raises(_Interrupted):
        copy(source, target, _interrupt)
    assert contents(target.shards[0]), "a part is there"
    for attempt in (
        lambda: take(_pipeline(mw.sinks.Collect()), target),
        lambda: copy(source, target),
        lambda: copy(target, make_store(1)),
    ):
        with pytest.raises(StoreError, match=r"unfinished copy of .*remove this store and copy again"):
            attempt()


def test_who_looks_at_a_copy_that_was_interrupted_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        closing(open_store(tmp_path / "source")) as source,
        closing(open_store(tmp_path / "target")) as target,
    ):
        _begin(source, 2, mw.sinks.Collect(), 1)
        with pytest.raises(_Interrupted):
            copy(source, target, _interrupt)
    for command in (["status", "--store"], ["store", "check"], ["store", "copy", str(tmp_path / "source")]):
        assert main([*command, str(tmp_path / "target")]) == 1
        assert "is an unfinished copy of" in capsys.readouterr().err


def test_an_empty_store_is_not_copied(make_store: Callable[..., Store]) -> None:
    with pytest.raises(StoreError, match="no pipeline in the store"):
        copy(make_store(1), make_store(1))


class TestCommand:
    def test_from_a_folder_to_postgres_and_back(
        self, tmp_path: Path, schema_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = open_store(tmp_path / "laptop", shards=2)
        _begin(source, 2, mw.sinks.Collect(), 2)
        source.close()
        assert main(["store", "copy", str(tmp_path / "laptop"), schema_url, "--shards", "4", "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["epoch"], done["shards"]) == (2, 4)
        assert main(["store", "check", schema_url]) == 0
        assert "nothing is wrong" in capsys.readouterr().out
        assert main(["store", "compact", schema_url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["bytes_after"] > 0
        assert main(["store", "copy", schema_url, str(tmp_path / "back")]) == 0
        assert "run it on the copy from now on" in capsys.readouterr().out

    def test_a_store_in_use_is_not_copied(
        self, tmp_path: Path, schema_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = open_store(schema_url)
        source.lock("the driver")
        assert main(["store", "copy", schema_url, str(tmp_path / "copy")]) == 1
        assert "in use by the driver" in capsys.readouterr().err
        source.close()

    @pytest.mark.parametrize("shards", ["3", "512"])
    def test_a_strange_number_of_shards_is_refused(
        self, tmp_path: Path, shards: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        open_store(tmp_path / "a").close()
        assert main(["store", "copy", str(tmp_path / "a"), str(tmp_path / "b"), "--shards", shards]) == 1
        assert "a power of two up to 256" in capsys.readouterr().err
        assert not (tmp_path / "b").exists()
