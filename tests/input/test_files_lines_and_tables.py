"""Lines with the user's own parser, Parquet, and packed files that break off."""

from __future__ import annotations

import datetime
import decimal
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millwheel as mw
from millwheel.store.memory import MemoryStore
from tests.computations import Echo
from tests.input.conftest import Run
from tests.input.reading import jsonl, opened, read_all, values, write
from tests.store import driving

Files = mw.injectors.Files


def parse(line: str) -> Any:
    """``TIME LEVEL TEXT``; a comment is no record."""
    if line.startswith("#"):
        return None
    time, level, text = line.split(" ", 2)
    return {"t": int(time), "level": level, "text": text}


def parse_record(line: str) -> mw.Record:
    """As `parse`, with a key and an ID of its own."""
    return mw.Record(value=line, timestamp=int(line.split()[0]), key=line.split()[1], id=line)


class TestLines:
    def test_lines_are_what_the_parser_makes_of_them(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.log", "# begin\n5 INFO started, slowly\r\n\n6 WARN é\n")
        records = read_all(opened(Files(path, format="lines", parse=parse, timestamp="t")))
        assert values(records) == [
            {"t": 5, "level": "INFO", "text": "started, slowly"},
            {"t": 6, "level": "WARN", "text": "é"},
        ]
        assert [record.timestamp for record in records] == [5, 6]

    def test_a_parser_may_give_whole_records(self, run: Run, tmp_path: Path) -> None:
        write(tmp_path / "a.log", "5 x\n6 y\n5 x\n")
        p = mw.Pipeline("lines")
        p.inject("in", Files(tmp_path / "a.log", format="lines", parse=parse_record))
        p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
        sink = mw.sinks.Collect()
        p.sink("out", sink)
        report = run(p)
        assert sorted((r.key, r.timestamp, r.value) for r in sink.records) == [
            ("x", 5, "5 x"),
            ("y", 6, "6 y"),
        ]
        assert report.duplicates == {"C": 1}

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ("oops", "the parser raised ValueError"),
            (b"7 INFO \xff\xfe", "the line is not UTF-8"),
        ],
        ids=["a parser that raises", "not UTF-8"],
    )
    def test_a_bad_line_stops_or_is_diverted(
        self, run: Run, tmp_path: Path, bad: str | bytes, message: str
    ) -> None:
        data = bad if isinstance(bad, bytes) else bad.encode()
        write(tmp_path / "a.log", b"5 INFO a\n" + data + b"\n6 INFO b\n")

        def pipeline(errors: Any) -> tuple[mw.Pipeline, mw.sinks.Collect, mw.sinks.Collect]:
            p = mw.Pipeline("lines")
            files = Files(tmp_path / "a.log", format="lines", parse=parse, timestamp="t", errors=errors)
            p.inject("in", files)
            p.add(Echo(), name="C", inputs={"in": mw.by("level")}, outputs=["out"])
            good, poor = mw.sinks.Collect(), mw.sinks.Collect()
            p.sink("out", good)
            if errors == "divert":
                p.sink("in.errors", poor)
            return p, good, poor

        with pytest.raises(mw.InputError, match=message):
            run(pipeline("stop")[0])
        p, good, poor = pipeline("divert")
        run(p)
        assert len(good.records) == 2
        assert [message in record.value["error"] for record in poor.records] == [True]

    @pytest.mark.parametrize(
        "options", [{"format": "lines"}, {"parse": parse}, {"format": "csv", "parse": parse}]
    )
    def test_the_parser_and_the_format_go_together(self, options: Any) -> None:
        with pytest.raises(mw.InputError, match="are given together"):
            Files("a.log", timestamp="t", **options)

    def test_without_a_parser_a_timestamp_is_needed(self) -> None:
        with pytest.raises(mw.InputError, match="timestamp names the field"):
            Files("a.jsonl")


def _table(rows: int, **columns: Any) -> pa.Table:
    return pa.table({"t": list(range(rows)), "n": [f"n{i}" for i in range(rows)], **columns})


class TestParquet:
    def test_rows_are_dicts_of_the_columns(self, tmp_path: Path) -> None:
        pq.write_table(_table(3), tmp_path / "a.parquet")
        records = read_all(opened(Files(tmp_path / "*.parquet", timestamp="t", id="n")))
        assert values(records) == [{"t": i, "n": f"n{i}"} for i in range(3)]
        assert [(record.timestamp, record.id) for record in records] == [(0, "n0"), (1, "n1"), (2, "n2")]

    def test_every_type_becomes_what_a_record_carries(self, run: Run, tmp_path: Path) -> None:
        moment = datetime.datetime(2011, 1, 27, 22, 34, 1, 5, tzinfo=datetime.timezone.utc)
        micros = 1_296_167_641_000_005
        table = pa.table(
            {
                "t": pa.array([moment], pa.timestamp("ns", "UTC")),
                "seconds": pa.array([moment.replace(microsecond=0)], pa.timestamp("s", "UTC")),
                "local": pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")),
                "day": [datetime.date(2011, 1, 27)],
                "time": [datetime.time(0, 0, 1, 5)],
                "price": [decimal.Decimal("1.50")],
                "took": [datetime.timedelta(milliseconds=3)],
                "raw": [b"\xff"],
                "none": pa.array([None], pa.int32()),
                "word": pa.array(["a"]).dictionary_encode(),
                "nested": [{"at": moment, "list": [decimal.Decimal("2.5"), None]}],
                "small": pa.array([1.5], pa.float32()),
            }
        )
        pq.write_table(table, tmp_path / "a.parquet")
        p = mw.Pipeline("types")
        p.inject("in", Files(tmp_path / "a.parquet", timestamp="t"))
        sink = mw.sinks.Collect()
        p.sink("in", sink)
        run(p)
        (record,) = sink.records
        assert record.timestamp == micros
        assert record.value == {
            "t": micros,
            "seconds": micros - 5,
            "local": micros,
            "day": "2011-01-27",
            "time": 1_000_005,
            "price": "1.50",
            "took": 3_000,
            "raw": b"\xff",
            "none": None,
            "word": "a",
            "nested": {"at": micros, "list": ["2.5", None]},
            "small": 1.5,
        }

    @pytest.mark.parametrize("step", [1, 7, 100, 1_000, 5_000])
    def test_however_a_file_is_cut_each_row_is_read_once(self, tmp_path: Path, step: int) -> None:
        pq.write_table(_table(2_500), tmp_path / "a.parquet", row_group_size=1_000)
        injector = opened(Files(tmp_path / "a.parquet", timestamp="t"))
        ((partition, stop),) = injector.poll().items()
        found: list[int] = []
        start: Any = None
        while start != stop:
            cut = injector.bound(partition, start, stop, step)
            assert (start or 0) < cut <= stop
            assert cut - (start or 0) <= 2 * step
            if step >= 1_000 or len(found) < 50 or found[-1] in (998, 999, 1_000):
                found += [record.timestamp for record in injector.read(partition, start, cut)]
            else:
                found += range(start, cut)
            start = cut
        assert found == list(range(2_500))

    def test_a_table_without_the_column_says_which_it_has(self, run: Run, tmp_path: Path) -> None:
        pq.write_table(_table(3), tmp_path / "a.parquet")
        p = mw.Pipeline("columns")
        p.inject("in", Files(tmp_path / "a.parquet", timestamp="time"))
        p.sink("in", mw.sinks.Collect())
        with pytest.raises(
            mw.InputError, match=r"a\.parquet has no column 'time', .* timestamp; it has t, n"
        ):
            run(p)

    def test_a_row_without_a_timestamp_is_bad_input(self, run: Run, tmp_path: Path) -> None:
        table = pa.table({"t": pa.array([1, None, 3]), "id": pa.array([1, 2, 3])})
        pq.write_table(table, tmp_path / "a.parquet")
        p = mw.Pipeline("null")
        p.inject("in", Files(tmp_path / "a.parquet", timestamp="t", id="id", errors="divert"))
        good, bad = mw.sinks.Collect(), mw.sinks.Collect()
        p.sink("in", good)
        p.sink("in.errors", bad)
        run(p)
        assert [record.timestamp for record in good.records] == [1, 3]
        assert ["timestamp field 't' is None" in record.value["error"] for record in bad.records] == [True]

    def test_a_file_that_is_no_parquet_is_named(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet", "oops")
        with pytest.raises(mw.InputError, match=r"the Parquet file .*a\.parquet cannot be read"):
            opened(Files(tmp_path / "a.parquet", timestamp="t")).poll()

    def test_a_file_that_changed_is_an_error(self, tmp_path: Path) -> None:
        pq.write_table(_table(3), tmp_path / "a.parquet")
        injector = opened(Files(tmp_path / "a.parquet", timestamp="t"), follow=True)
        injector.commit(injector.poll())
        with open(tmp_path / "a.parquet", "r+b") as file:
            pq.write_table(_table(5), file)
        with pytest.raises(mw.InputError, match=r"a\.parquet changed"):
            injector.poll()

    def test_new_files_of_a_folder_are_followed(self, tmp_path: Path) -> None:
        injector = opened(Files(tmp_path / "*.parquet", timestamp="t"), follow=True)
        assert dict(injector.poll()) == {}
        pq.write_table(_table(3), tmp_path / "a.parquet")
        assert list(injector.poll().values()) == [3]
        pq.write_table(_table(4), tmp_path / "b.parquet")
        assert list(injector.poll().values()) == [3, 4]


def _text(form: str, numbers: range) -> bytes:
    lines = [f"{n}" if form == "csv" else f'{{"t": {n}}}' for n in numbers]
    return "\n".join([*(["t"] if form == "csv" else []), *lines, ""]).encode()


@pytest.mark.parametrize("form", ["jsonl", "csv"])
class TestDamagedGzip:
    DAMAGES: ClassVar[dict[str, tuple[Callable[[bytes, bytes], bytes], bool]]] = {
        "plain text": (lambda text, packed: text, False),
        "text behind it": (lambda text, packed: packed + b"garbage\n", True),
        "a broken member behind it": (lambda text, packed: packed + b"\x1f\x8bxx", True),
        "a wrong checksum": (lambda text, packed: packed[:-8] + b"12345678", True),
        "one byte": (lambda text, packed: b"\x1f", False),
        "broken at once": (lambda text, packed: packed[:11] + b"\xff" * 50, False),
    }
    """What is done to the file, and whether its lines can be unpacked all the same."""

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_what_can_be_unpacked_is_read_and_the_rest_is_diverted(
        self, tmp_path: Path, form: str, damage: str
    ) -> None:
        change, readable = self.DAMAGES[damage]
        text = _text(form, range(1, 1_001))
        (tmp_path / f"a.{form}.gz").write_bytes(change(text, gzip.compress(text)))
        (tmp_path / f"b.{form}.gz").write_bytes(gzip.compress(_text(form, range(5_000, 5_001))))
        p = mw.Pipeline("damaged")
        p.inject("in", Files(tmp_path / "*", timestamp="t", errors="divert"))
        good, bad = mw.sinks.Collect(), mw.sinks.Collect()
        p.sink("in", good)
        p.sink("in.errors", bad)
        driving.run(p, MemoryStore())
        expected = [*(range(1, 1_001) if readable else []), 5_000]
        assert sorted(record.timestamp for record in good.records) == expected
        (record,) = bad.records
        assert f"a.{form}.gz cannot be read" in record.value["error"]
        assert ("rename it if it is not packed" in record.value["error"]) or damage != "plain text"

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_without_divert_it_stops_the_run(self, tmp_path: Path, form: str, damage: str) -> None:
        text = _text(form, range(1, 1_001))
        path = tmp_path / f"a.{form}.gz"
        path.write_bytes(self.DAMAGES[damage][0](text, gzip.compress(text)))
        p = mw.Pipeline("damaged")
        p.inject("in", Files(path, timestamp="t"))
        with pytest.raises(mw.InputError, match=rf"a\.{form}\.gz cannot be read"):
            driving.run(p, MemoryStore())


class TestTruncatedGzip:
    def test_what_can_be_unpacked_is_read_and_the_rest_is_diverted(self, run: Run, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "a.jsonl.gz", [{"t": i, "v": f"{i * 7919 % 100_003}"} for i in range(50_000)])
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        p = mw.Pipeline("truncated")
        p.inject("in", Files(path, timestamp="t", errors="divert"))
        good, bad = mw.sinks.Collect(), mw.sinks.Collect()
        p.sink("in", good)
        p.sink("in.errors", bad)
        run(p)
        count = len(good.records)
        assert count > 10_000
        assert [record.timestamp for record in good.records] == list(range(count))
        messages = [record.value["error"] for record in bad.records]
        assert any("a.jsonl.gz cannot be read" in message for message in messages)

    def test_without_divert_it_stops_the_run(self, run: Run, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "a.jsonl.gz", [{"t": i} for i in range(1_000)])
        path.write_bytes(path.read_bytes()[:-20])
        p = mw.Pipeline("truncated")
        p.inject("in", Files(path, timestamp="t"))
        p.sink("in", mw.sinks.Collect())
        with pytest.raises(mw.InputError, match=r"a\.jsonl\.gz cannot be read"):
            run(p)
