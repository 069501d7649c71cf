"""Files of JSON lines and CSV, plain and gzip, become records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from tests.input.reading import csv_file, jsonl, opened, path_of, read_all, values, write

Files = mw.injectors.Files

VALUES = [{"t": 10 * i, "id": f"id{i}", "text": f"line {i} é\U0001f600"} for i in range(5)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.log", "a.gz"])
def test_json_lines_become_records(tmp_path: Path, name: str) -> None:
    jsonl(tmp_path / name, VALUES)
    records = read_all(opened(Files(tmp_path / name, timestamp="t", id="id")))
    assert values(records) == VALUES
    assert [record.timestamp for record in records] == [0, 10, 20, 30, 40]
    assert [record.id for record in records] == ["id0", "id1", "id2", "id3", "id4"]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.CSV"])
def test_rows_of_csv_become_records_with_text_in_their_fields(tmp_path: Path, name: str) -> None:
    csv_file(tmp_path / name, [["t", "id", "text"], [5, "x", 'with "quotes", commas'], [7, "y", ""]])
    records = read_all(opened(Files(tmp_path / name, timestamp="t", id="id")))
    assert values(records) == [
        {"t": "5", "id": "x", "text": 'with "quotes", commas'},
        {"t": "7", "id": "y", "text": ""},
    ]
    assert [(record.timestamp, record.id) for record in records] == [(5, "x"), (7, "y")]


def test_a_format_that_is_given_beats_the_name(tmp_path: Path) -> None:
    csv_file(tmp_path / "rows.txt", [["t", "v"], [1, "a"]])
    assert values(read_all(opened(Files(tmp_path / "rows.txt", timestamp="t", format="csv")))) == [
        {"t": "1", "v": "a"}
    ]
    jsonl(tmp_path / "lines.csv", [{"t": 1}])
    assert values(read_all(opened(Files(tmp_path / "lines.csv", timestamp="t", format="jsonl")))) == [
        {"t": 1}
    ]


def test_several_files_are_read_each_as_a_partition(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", [{"t": 1}])
    jsonl(tmp_path / "b.jsonl.gz", [{"t": 2}])
    csv_file(tmp_path / "c.csv", [["t"], [3]])
    injector = opened(Files(tmp_path / "*", timestamp="t"))
    assert sorted(Path(path_of(name)).name for name in injector.poll()) == ["a.jsonl", "b.jsonl.gz", "c.csv"]
    assert sorted(record.timestamp for record in read_all(injector)) == [1, 2, 3]


def test_two_stars_go_into_folders(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    jsonl(tmp_path / "deep" / "er" / "a.jsonl", [{"t": 1}])
    jsonl(tmp_path / "b.jsonl", [{"t": 2}])
    injector = opened(Files(tmp_path / "**" / "*.jsonl", timestamp="t"))
    assert sorted(record.timestamp for record in read_all(injector)) == [1, 2]


@pytest.mark.parametrize(
    ("unit", "written", "expected"),
    [
        ("us", 1_500_000, 1_500_000),
        ("us", 1_500_000.4, 1_500_000),
        ("us", -5, -5),
        ("ms", 1_500, 1_500_000),
        ("ms", 0.25, 250),
        ("s", 3, 3_000_000),
        ("s", 1.5, 1_500_000),
        ("s", 1296167641.000001, 1296167641000001),
        ("iso", "2011-01-27T22:34:01Z", 1296167641000000),
        ("iso", "2011-01-27T22:34:01.5+00:00", 1296167641500000),
        ("iso", "2011-01-28T00:34:01+02:00", 1296167641000000),
        ("iso", "2011-01-27 22:34:01", 1296167641000000),
        ("iso", "2011-01-27", 1296086400000000),
        ("iso", "1969-12-31T23:59:59.999999Z", -1),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_timestamp_is_taken_in_its_unit(
    tmp_path: Path, name: str, unit: Any, written: Any, expected: int
) -> None:
    if name.endswith("csv"):
        csv_file(tmp_path / name, [["t"], [written]])
    else:
        jsonl(tmp_path / name, [{"t": written}])
    (record,) = read_all(opened(Files(tmp_path / name, timestamp="t", unit=unit)))
    assert record.timestamp == expected
    assert type(record.timestamp) is int


def test_the_last_line_of_a_finished_file_needs_no_end(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", [{"t": 1}, {"t": 2}], end="")
    write(tmp_path / "b.csv", "t\n3\n4")
    assert [r.timestamp for r in read_all(opened(Files(tmp_path / "*", timestamp="t")))] == [1, 2, 3, 4]


def test_empty_lines_and_windows_line_ends_are_no_records(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '\n{"t": 1}\r\n  \n\r\n{"t": 2}\n\n')
    write(tmp_path / "b.csv", "t,v\r\n3,a\r\n\r\n4,b\r\n")
    records = read_all(opened(Files(tmp_path / "*", timestamp="t")))
    assert values(records) == [{"t": 1}, {"t": 2}, {"t": "3", "v": "a"}, {"t": "4", "v": "b"}]


def test_a_byte_order_mark_before_a_csv_header_is_not_part_of_its_first_name(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "\ufefft,v\n1,a\n")
    assert values(read_all(opened(Files(tmp_path / "a.csv", timestamp="t")))) == [{"t": "1", "v": "a"}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz", "a.csv.gz"])
def test_an_empty_file_has_no_records(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, "")
    assert read_all(opened(Files(tmp_path / name, timestamp="t"))) == []


def test_a_csv_file_with_a_header_alone_has_no_records(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "t,v\n")
    write(tmp_path / "b.csv", "t,v")
    assert read_all(opened(Files(tmp_path / "*.csv", timestamp="t"))) == []


def test_an_integer_may_be_an_id(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", [{"t": 1, "id": 7}, {"t": 1, "id": "7"}])
    assert [r.id for r in read_all(opened(Files(tmp_path / "a.jsonl", timestamp="t", id="id")))] == [7, "7"]


def test_lines_longer_than_a_chunk_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.injectors.lines.CHUNK", 16)
    many = [{"t": i, "text": "x" * (i * 13 % 70)} for i in range(30)]
    for name in ("a.jsonl", "a.jsonl.gz"):
        jsonl(tmp_path / name, many)
        assert values(read_all(opened(Files(tmp_path / name, timestamp="t")))) == many


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"watermark": "soon"}, "watermark is complete, events, monotonic, created or a function"),
            (
                {"watermark": "complete", "slack": 5},
                "slack goes with watermark='events', not with 'complete'",
            ),
            ({"watermark": "created", "slack": 5}, "slack goes with watermark='events'"),
            ({"format": "xml"}, "format is one of jsonl, csv, lines, parquet, avro, not 'xml'"),
            ({"unit": "hours"}, "unit is one of us, ms, s, iso, auto, not 'hours'"),
        ],
    )
    def test_an_option_that_is_wrong_says_what_there_is(self, options: Any, message: str) -> None:
        with pytest.raises(mw.InputError, match=message):
            Files("*.jsonl", timestamp="t", **options)

    def test_no_file_that_matches_says_so_with_the_pattern_and_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(mw.InputError, match=r"no file matches .*/nothing-\*\.jsonl: fix the pattern, or"):
            opened(Files(tmp_path / "nothing-*.jsonl", timestamp="t")).poll()

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").mkdir()
        with pytest.raises(mw.InputError, match="no file matches"):
            opened(Files(tmp_path / "*.jsonl", timestamp="t")).poll()

    @pytest.mark.parametrize("data", [b"not gzip at all\n" * 10, b"\x1f\x8b\x08\x00 broken behind the head"])
    def test_a_gz_file_that_is_no_gzip_is_named(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "a.jsonl.gz").write_bytes(data)
        with pytest.raises(mw.InputError, match=r"a\.jsonl\.gz"):
            read_all(opened(Files(tmp_path / "a.jsonl.gz", timestamp="t")))

    def test_a_gz_file_that_ends_too_early_is_named(self, tmp_path: Path) -> None:
        whole = jsonl(tmp_path / "a.jsonl.gz", VALUES * 100).read_bytes()
        (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(mw.InputError, match=r"a\.jsonl\.gz"):
            read_all(opened(Files(tmp_path / "a.jsonl.gz", timestamp="t")))

    def test_a_file_that_vanished_is_named(self, tmp_path: Path) -> None:
        path = jsonl(tmp_path / "a.jsonl", VALUES)
        injector = opened(Files(path, timestamp="t"))
        ((partition, end),) = injector.poll().items()
        path.unlink()
        with pytest.raises(mw.InputError, match=r"a\.jsonl"):
            list(injector.read(partition, None, end))
        with pytest.raises(mw.InputError, match=r"a\.jsonl"):
            injector.bound(partition, None, end, 1)
