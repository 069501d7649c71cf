"""A folder of JSON lines: few files, which only grow, by what epochs have written that are committed."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.errors import FencedError
from millwheel.sinks.line_text import line_of, lines_of
from millwheel.sinks.segments import Segments
from millwheel.sinks.staging import Staging
from millwheel.store.memory import MemoryStore
from millwheel.worker.epoch import SinkFailure
from tests.computations import Echo
from tests.servers.disk import full_disk
from tests.store.driving import run

JsonLines = mw.sinks.JsonLines


@dataclass
class Inner:
    data: bytes = b""


@dataclass
class Outer:
    name: str
    inner: list[Inner] = field(default_factory=list)


def _record(value: Any, *, key: str = "k", timestamp: int = 1) -> mw.Record:
    return mw.Record(value=value, timestamp=timestamp, key=key)


@pytest.fixture
def sink(tmp_path: Path) -> mw.sinks.JsonLines:
    return _begun(JsonLines(tmp_path / "out"))


def _begun(sink: mw.sinks.JsonLines, *, origin: str = "a store", epoch: int = 0) -> mw.sinks.JsonLines:
    """A sink as a driver has opened it, whose store has committed an epoch."""
    sink.open()
    sink.begin(origin, epoch)
    return sink


def _put(sink: mw.sinks.JsonLines, records: list[mw.Record], epoch: int = 1) -> None:
    """One epoch, of one shard."""
    sink.write(epoch, 0, records)
    sink.commit(epoch)


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def _staged(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / ".staged").iterdir() if path.name != "state")


def _written(folder: Path) -> list[Any]:
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]


class TestFormat:
    def test_a_line_has_the_key_the_timestamp_and_the_value(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        _put(sink, [_record({"a": [1, None]}, key="é", timestamp=-5), _record("two")])
        assert _written(tmp_path / "out") == [
            {"key": "é", "timestamp": -5, "value": {"a": [1, None]}},
            {"key": "k", "timestamp": 1, "value": "two"},
        ]

    def test_every_line_has_an_end_and_no_line_within(self, sink: mw.sinks.JsonLines, tmp_path: Path) -> None:
        _put(sink, [_record("with\nline\r\nends\u2028")] * 3)
        (path,) = (tmp_path / "out").glob("*.jsonl")
        assert path.read_bytes().count(b"\n") == 3
        assert path.read_bytes().endswith(b"\n")

    @pytest.mark.parametrize(
        ("value", "written"),
        [
            (b"bytes", "bytes"),
            (b"\xff\x00", "\\xff\x00"),
            ({"a": b"in a dict"}, {"a": "in a dict"}),
            (
                {1: "int", 2.5: "float", None: "none", False: "bool"},
                {"1": "int", "2.5": "float", "null": "none", "false": "bool"},
            ),
            (2**64 - 1, 2**64 - 1),
            (-(2**63), -(2**63)),
            (float("nan"), None),
            (Outer("o", [Inner(b"x"), Inner()]), {"name": "o", "inner": [{"data": "x"}, {"data": ""}]}),
            ([], []),
            (None, None),
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_values_of_every_kind_are_written(
        self, sink: mw.sinks.JsonLines, tmp_path: Path, value: Any, written: Any
    ) -> None:
        _put(sink, [_record(value)])
        assert [line["value"] for line in _written(tmp_path / "out")] == [written]

    @pytest.mark.parametrize(
        "value",
        [{(1, 2): "tuple key"}, {b"bytes": "key"}, "\ud800", {"\ud800": 1}, ["a\udfffb"]],
        ids=ascii,
    )
    def test_what_messagepack_carries_and_json_does_not_is_written_in_some_way(
        self, sink: mw.sinks.JsonLines, tmp_path: Path, value: Any
    ) -> None:
        _put(sink, [_record(value), _record("behind")])
        assert [line["value"] for line in _written(tmp_path / "out")][1] == "behind"

    def test_a_key_of_any_text_is_written(self, sink: mw.sinks.JsonLines, tmp_path: Path) -> None:
        _put(sink, [_record(1, key="\ud800"), _record(2, key="\x00")])
        assert [line["value"] for line in _written(tmp_path / "out")] == [1, 2]
        assert [record.key for record in sink.records()] == ["\ud800", "\x00"]

    def test_the_records_of_a_folder_can_be_read_back(self, sink: mw.sinks.JsonLines) -> None:
        records = [_record({"n": i}, key=f"k{i}", timestamp=i) for i in range(5)]
        sink.write(2, 0, records[2:])
        sink.write(1, 7, records[:2])
        sink.commit(2)
        assert list(sink.records()) == records


class TestIdempotence:
    def test_a_retry_of_an_epoch_replaces_what_it_wrote(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        for _ in range(3):
            sink.write(4, 2, [_record("a"), _record("b")])
        sink.commit(4)
        assert [line["value"] for line in _written(tmp_path / "out")] == ["a", "b"]

    def test_nothing_is_seen_of_an_epoch_that_is_not_committed(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        sink.write(1, 0, [_record("a")])
        sink.write(2, 0, [_record("b")])
        assert _files(tmp_path / "out") == []
        sink.commit(1)
        assert [record.value for record in sink.records()] == ["a"]

    def test_an_epoch_that_is_told_twice_is_added_once(self, sink: mw.sinks.JsonLines) -> None:
        for _ in range(2):
            _put(sink, [_record("a")])
        assert [record.value for record in sink.records()] == ["a"]

    def test_what_a_straggler_writes_of_a_former_epoch_is_not_added(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        _put(sink, [_record("a")], 1)
        _put(sink, [_record("b")], 2)
        sink.write(1, 0, [_record("a")])
        _put(sink, [_record("c")], 3)
        sink.close()
        assert [record.value for record in sink.records()] == ["a", "b", "c"]
        assert _staged(tmp_path / "out") == []

    def test_every_epoch_and_shard_is_added(self, sink: mw.sinks.JsonLines, tmp_path: Path) -> None:
        for epoch in (1, 2):
            for shard in (0, 1, 1 << 20, (1 << 20) + 1):
                sink.write(epoch, shard, [_record([epoch, shard])])
            sink.commit(epoch)
        assert len(_written(tmp_path / "out")) == 8

    def test_another_process_that_retries_replaces_what_was_staged(
        self, sink: mw.sinks.JsonLines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink.write(1, 0, [_record("a")])
        monkeypatch.setattr(os, "getpid", lambda: 99_999_999)
        sink.write(1, 0, [_record("a")])
        assert len(_staged(tmp_path / "out")) == 1

    def test_epochs_are_added_in_their_order(self, sink: mw.sinks.JsonLines) -> None:
        for epoch in (2, 10, 9, 100):
            sink.write(epoch, 0, [_record(epoch)])
        sink.commit(100)
        assert [record.value for record in sink.records()] == [2, 9, 10, 100]


class TestFiles:
    def test_an_hour_of_short_epochs_leaves_one_file(self, sink: mw.sinks.JsonLines, tmp_path: Path) -> None:
        """As many epochs as a test has time for: what counts is that their number does not matter."""
        for epoch in range(1, 201):
            _put(sink, [_record(epoch)], epoch)
        sink.close()
        assert _files(tmp_path / "out") == ["part-0000000001.jsonl"]
        assert _staged(tmp_path / "out") == []
        assert [record.value for record in sink.records()] == list(range(1, 201))

    def test_a_file_of_some_size_is_followed_by_another(self, tmp_path: Path) -> None:
        sink = _begun(JsonLines(tmp_path / "out", file_size=1_000))
        for epoch in range(1, 51):
            _put(sink, [_record("x" * 60)], epoch)
        sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("*.jsonl"))]
        assert len(sizes) > 3
        assert all(1_000 <= size < 1_200 for size in sizes[:-1])
        assert len(list(sink.records())) == 50

    def test_files_only_grow(self, tmp_path: Path) -> None:
        sink = _begun(JsonLines(tmp_path / "out", file_size=300))
        seen: dict[str, bytes] = {}
        for epoch in range(1, 31):
            _put(sink, [_record(epoch)], epoch)
            if epoch % 7 == 0:
                sink = _begun(JsonLines(tmp_path / "out", file_size=300), epoch=epoch)
            now = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
            assert all(now[name].startswith(data) for name, data in seen.items())
            seen = now
        assert [record.value for record in sink.records()] == list(range(1, 31))

    def test_a_new_store_adds_to_what_another_one_left(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        _put(sink, [_record("first")])
        sink.close()
        sink.write(2, 0, [_record("never committed")])
        other = _begun(JsonLines(tmp_path / "out"), origin="another store")
        _put(other, [_record("second")])
        assert [record.value for record in other.records()] == ["first", "second"]

    def test_a_driver_that_was_taken_over_changes_nothing_any_more(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        from millwheel.sinks.segments import Segments

        old, new = Segments(tmp_path / "out"), Segments(tmp_path / "out")
        old.begin("a store", 0, 1_000)
        sink.write(1, 0, [_record("a")])
        old.commit(1)
        new.begin("a store", 1, 1_000)
        with pytest.raises(mw.MillWheelError, match="another driver writes to"):
            old.close()
        sink.write(2, 0, [_record("b")])
        new.commit(2)
        assert [record.value for record in sink.records()] == ["a", "b"]


class TestCrash:
    """The driver is gone at each point of adding an epoch; the next one makes it whole."""

    @pytest.mark.parametrize("keep", [0, 1, 20, 10_000], ids=lambda keep: f"{keep} bytes came through")
    def test_what_was_half_added_is_added_to_its_end(self, tmp_path: Path, keep: int) -> None:
        sink = _begun(JsonLines(tmp_path / "out"))
        _put(sink, [_record("before")], 1)
        sink.close()
        _begun(JsonLines(tmp_path / "out"), epoch=1)
        for epoch in (2, 3):
            sink.write(epoch, 0, [_record([epoch, i]) for i in range(3)])
        (path,) = (tmp_path / "out").glob("*.jsonl")
        staged = sorted((tmp_path / "out" / ".staged").glob("0*"))
        whole = b"".join(item.read_bytes() for item in staged)
        with open(path, "ab") as file:
            file.write(whole[:keep])
        again = _begun(JsonLines(tmp_path / "out"), epoch=3)
        assert [record.value for record in again.records()] == ["before"] + [
            [epoch, i] for epoch in (2, 3) for i in range(3)
        ]

    def test_what_a_lost_power_spoilt_is_written_again(self, tmp_path: Path) -> None:
        sink = _begun(JsonLines(tmp_path / "out"))
        _put(sink, [_record("before")], 1)
        sink.close()
        sink.write(2, 0, [_record("behind")])
        (path,) = (tmp_path / "out").glob("*.jsonl")
        with open(path, "ab") as file:
            file.write(b"\x00" * 4_096)
        again = _begun(JsonLines(tmp_path / "out"), epoch=2)
        assert [record.value for record in again.records()] == ["before", "behind"]

    def test_a_last_line_that_is_half_there_is_not_read(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        _put(sink, [_record("a")])
        with open(tmp_path / "out" / "part-0000000001.jsonl", "ab") as file:
            file.write(b'{"key": "half')
        assert [record.value for record in sink.records()] == ["a"]

    def test_a_disk_that_is_full_while_an_epoch_is_added_loses_nothing(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        _put(sink, [_record("a")], 1)
        sink.write(2, 0, [_record("b" * 100)] * 10)
        with full_disk(300), pytest.raises(mw.MillWheelError) as caught:
            sink.commit(2)
        _names_the_sink(caught.value, "JsonLines", tmp_path / "out")
        sink.close()
        again = _begun(JsonLines(tmp_path / "out"), epoch=2)
        assert [record.value for record in again.records()] == ["a", *["b" * 100] * 10]

    def test_a_task_whose_disk_is_full_leaves_no_temporary_file(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        before = sorted(os.listdir(tmp_path / "out" / ".staged"))
        with full_disk(300), pytest.raises(mw.MillWheelError) as caught:
            sink.write(1, 0, [_record("b" * 100)] * 10)
        _names_the_sink(caught.value, "JsonLines", tmp_path / "out")
        assert sorted(os.listdir(tmp_path / "out" / ".staged")) == before
        sink.write(1, 0, [_record("b")])
        sink.commit(1)
        assert [record.value for record in sink.records()] == ["b"]

    def test_what_a_killed_task_left_half_written_is_removed_at_the_next_start(
        self, sink: mw.sinks.JsonLines, tmp_path: Path
    ) -> None:
        left = tmp_path / "out" / ".staged" / ".0000000001-00000000.12345"
        left.write_text("half")
        sink.close()
        _begun(JsonLines(tmp_path / "out"), epoch=0)
        assert not left.exists()


def _names_the_sink(error: mw.MillWheelError, sink: str, folder: Path) -> None:
    text = str(error)
    assert text.startswith(f"{sink}('{folder}'): the sink's folder {folder} cannot be written (")
    assert text.endswith("free some space on its disk, and run again; nothing is lost")


def test_a_run_whose_sink_has_a_full_disk_says_so_and_the_next_one_delivers(tmp_path: Path) -> None:
    def pipeline() -> mw.Pipeline:
        p = mw.Pipeline("full")
        p.inject("in", mw.injectors.Records([mw.Record(value="x" * 100, timestamp=i) for i in range(50)]))
        p.sink("in", JsonLines(tmp_path / "out"))
        return p

    store = MemoryStore()
    with (
        full_disk(1_000),
        pytest.raises(SinkFailure, match=r"^stream 'in': JsonLines.*free some space on its disk"),
    ):
        run(pipeline(), store)
    assert not [name for name in os.listdir(tmp_path / "out" / ".staged") if name.startswith(".")]
    run(pipeline(), store)
    assert len(list(JsonLines(tmp_path / "out").records())) == 50


class TestAtomicity:
    def test_a_write_that_fails_before_its_end_leaves_nothing(
        self, sink: mw.sinks.JsonLines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: Any) -> None:
            raise OSError("the disk went away")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            with pytest.raises(mw.MillWheelError, match="the disk went away"):
                sink.write(1, 0, [_record("a")])
        sink.commit(1)
        assert list(sink.records()) == []

    def test_a_value_that_cannot_be_written_leaves_what_was_staged(self, sink: mw.sinks.JsonLines) -> None:
        sink.write(1, 0, [_record("a")])
        with pytest.raises(TypeError):
            sink.write(1, 0, [_record("b"), _record(object())])
        sink.commit(1)
        assert [record.value for record in sink.records()] == ["a"]


class TestOpening:
    def test_the_folder_is_made_with_those_above_it(self, tmp_path: Path) -> None:
        JsonLines(tmp_path / "a" / "b" / "c").open()
        assert (tmp_path / "a" / "b" / "c").is_dir()
        assert _files(tmp_path / "a" / "b" / "c") == []

    @pytest.mark.parametrize("below", ["file/out", "file"])
    def test_a_folder_that_cannot_be_is_named_before_anything_runs(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(mw.MillWheelError, match=r"the sink's folder .*/file.* cannot be written"):
            JsonLines(tmp_path / below).open()

    def test_a_folder_where_nobody_may_write_is_named(self) -> None:
        with pytest.raises(mw.MillWheelError, match="the sink's folder /proc/out cannot be written"):
            JsonLines("/proc/out").open()

    def test_a_pipeline_with_such_a_sink_does_not_begin(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        p = mw.Pipeline("p")
        p.inject("in", mw.injectors.Records([_record(1)]))
        p.sink("in", JsonLines(tmp_path / "file"))
        store = MemoryStore()
        with pytest.raises(mw.MillWheelError, match="the sink's folder"):
            run(p, store)

    def test_a_relative_folder_stays_where_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        sink = JsonLines("out")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        sink.open()
        sink.write(1, 0, [_record(1)])
        assert _files(tmp_path) == ["elsewhere", "out"]


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1), _values), max_size=5))
def test_every_json_value_comes_back(tmp_path: Path, entries: list[tuple[str, int, Any]]) -> None:
    records = [mw.Record(value=value, timestamp=time, key=key) for key, time, value in entries]
    folder = tempfile.mkdtemp(dir=tmp_path)
    sink = _begun(JsonLines(folder))
    _put(sink, records)
    assert list(sink.records()) == records


def test_all_producers_of_a_stream_have_shards_of_their_own(tmp_path: Path) -> None:
    """Two injectors and two computations on one stream, at several levels, into one folder."""
    p = mw.Pipeline("shards")
    for name in ("a", "b"):
        p.inject("all", mw.injectors.Records([_record([name, i], key=f"{i}") for i in range(20)]))
    p.inject("in", mw.injectors.Records([_record(["in", i], key=f"{i}") for i in range(20)]))
    p.add(Echo("all"), name="C", inputs={"in": mw.by_key}, outputs=["all"])
    p.add(Echo("all"), name="D", inputs={"in": mw.by_key}, outputs=["all"])
    p.add(Echo("more"), name="E", inputs={"all": lambda record: str(record.value)}, outputs=["more"])
    p.sink("all", JsonLines(tmp_path / "out"))
    p.sink("more", JsonLines(tmp_path / "out"))
    run(p, MemoryStore(4), slots=4)
    written = sorted(line["value"] for line in _written(tmp_path / "out"))
    expected = [[name, i] for name in ("a", "b", "in", "in") for i in range(20)]
    assert written == sorted(expected * 2)


def test_a_driver_that_wakes_up_after_it_was_taken_over_adds_nothing_twice(tmp_path: Path) -> None:
    old, new = Segments(tmp_path), Segments(tmp_path)
    staging = Staging(tmp_path)
    staging.open()
    old.begin("store", 0, 1 << 20)
    staging.put(1, 0, b"one\n")
    old.commit(1)
    staging.put(2, 0, b"two\n")
    staged = old._staged(2)  # it has read this, and stands still before it writes
    new.begin("store", 2, 1 << 20)
    staging.put(3, 0, b"three\n")
    new.commit(3)
    old.append(staged)
    old.dirty = True
    with pytest.raises(FencedError):
        old.sync()
    new.close()
    assert (tmp_path / "part-0000000001.jsonl").read_bytes() == b"one\ntwo\nthree\n"


_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
_FLAT = st.lists(_SCALARS) | st.lists(st.dictionaries(st.text(), _SCALARS))
_DEEP = st.lists(st.recursive(_SCALARS | st.binary(), st.lists) | st.dictionaries(st.text(), st.binary()))


@given(_FLAT | _DEEP)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_lines_say_the_same_whichever_way_they_are_written(values: list[Any]) -> None:
    keys = [f"k{n}" for n in range(len(values))]
    written = lines_of(keys, list(range(len(values))), values)
    lines = [json.loads(line) for line in written.split(b"\n") if line]
    one_by_one = b"".join(map(line_of, keys, range(len(values)), values)).split(b"\n")
    assert lines == [json.loads(line) for line in one_by_one if line]
    assert written.endswith(b"\n") or not written


@pytest.mark.parametrize("copied", [None, 0, 1, 7])
def test_an_epoch_is_added_whole_where_the_kernel_copies_a_part_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int | None
) -> None:
    real = os.copy_file_range

    def copy(source: int, target: int, count: int, at: None, to: int) -> int:
        if copied is None:
            raise OSError(errno.EXDEV, "between file systems")
        return real(source, target, min(count, copied), at, to) if copied else 0

    monkeypatch.setattr(os, "copy_file_range", copy)
    sink = _begun(JsonLines(tmp_path / "out"))
    for epoch in (1, 2):
        for shard in range(2):
            sink.write(epoch, shard, [_record([epoch, shard, i]) for i in range(3)])
        sink.commit(epoch)
    sink.close()
    wanted = [[epoch, shard, i] for epoch in (1, 2) for shard in range(2) for i in range(3)]
    assert [record.value for record in sink.records()] == wanted
