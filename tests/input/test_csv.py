"""CSV as it is in life: other delimiters, no header, and columns that are no text."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from tests.input.conftest import Run
from tests.input.reading import Follower, append, opened, read_all, values, write

Files = mw.injectors.Files


def _read(path: Path, text: str, **options: Any) -> list[Any]:
    write(path, text)
    return values(read_all(opened(Files(path, **{"timestamp": "t", **options}))))


@pytest.mark.parametrize("quoted", ["", '"x"'])
def test_columns_get_their_types(tmp_path: Path, quoted: str) -> None:
    text = f"t,price,n,paid,note\n1,2.50,7,true,{quoted}\n2,,,,\n"
    types = {"price": float, "n": int, "paid": bool}
    assert _read(tmp_path / "a.csv", text, types=types) == [
        {"t": "1", "price": 2.5, "n": 7, "paid": True, "note": quoted.strip('"')},
        {"t": "2", "price": None, "n": None, "paid": None, "note": ""},
    ]


def test_a_type_may_be_a_function_of_a_text(tmp_path: Path) -> None:
    found = _read(
        tmp_path / "a.csv", "t,cents,tags\n1,2.50,a b\n", types={"cents": _cents, "tags": str.split}
    )
    assert found == [{"t": "1", "cents": 250, "tags": ["a", "b"]}]


def _cents(text: str) -> int:
    return int(Decimal(text) * 100)


def test_types_are_inferred_value_by_value(tmp_path: Path) -> None:
    fields = ["5", "-2.5", "1e3", "true", "False", "", "007", "text", "9" * 19, ".5", "-", "nan"]
    text = "t,v\n" + "".join(f"{number},{field}\n" for number, field in enumerate(fields))
    found = [value["v"] for value in _read(tmp_path / "a.csv", text, types="infer")]
    assert found == [
        5,
        -2.5,
        1000.0,
        True,
        False,
        None,
        "007",
        "text",
        "9" * 19,
        0.5,
        "-",
        "nan",
    ]
    assert list(map(type, found[:4])) == [int, float, float, bool]


def test_ids_and_timestamps_have_the_types_of_their_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "t,id\n1,5\n2,x\n")
    records = read_all(opened(Files(path, timestamp="t", id="id", types="infer")))
    assert [(record.timestamp, record.id, record.value["t"]) for record in records] == [
        (1, 5, 1),
        (2, "x", 2),
    ]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_fields_are_separated_by_a_delimiter(tmp_path: Path, delimiter: str) -> None:
    text = delimiter.join(["t", "a,b"]) + "\n" + delimiter.join(["1", "x,y"]) + "\n"
    assert _read(tmp_path / "a.csv", text, delimiter=delimiter) == [{"t": "1", "a,b": "x,y"}]
    quoted = text.replace("x,y", f'"x{delimiter}y"')
    assert _read(tmp_path / "b.csv", quoted, delimiter=delimiter) == [{"t": "1", "a,b": f"x{delimiter}y"}]


def test_files_without_a_header_get_one(tmp_path: Path) -> None:
    assert _read(tmp_path / "a.csv", "1,x\n", header=["t", "v"]) == [{"t": "1", "v": "x"}]
    assert _read(tmp_path / "b.csv.gz", "1,x\n2,y\n", header=["t", "v"]) == [
        {"t": "1", "v": "x"},
        {"t": "2", "v": "y"},
    ]


def test_a_file_without_a_header_is_followed_from_its_first_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "1,x\n")
    follower = Follower(opened(Files(path, timestamp="t", header=["t", "v"]), follow=True))
    assert values(follower.look()) == [{"t": "1", "v": "x"}]
    append(path, "2,y\n")
    assert values(follower.look()) == [{"t": "2", "v": "y"}]


def test_a_field_that_is_not_of_its_type_is_bad_input(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "a.csv", "t,price\n1,cheap\n2,5\n")
    p = mw.Pipeline("csv")
    p.inject("in", Files(path, timestamp="t", types={"price": float}, errors="divert"))
    good, bad = mw.sinks.Collect(), mw.sinks.Collect()
    p.sink("in", good)
    p.sink("in.errors", bad)
    run(p)
    assert [record.value for record in good.records] == [{"t": "2", "price": 5.0}]
    assert "the field 'price' is 'cheap', which float cannot convert" in bad.records[0].value["error"]


def test_a_type_of_a_column_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(mw.InputError, match=r"no column 'prize', which types= names; it has t, price"):
        _read(tmp_path / "a.csv", "t,price\n1,2\n", types={"prize": float})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ";;"}, "delimiter is one character"),
        ({"delimiter": ""}, "delimiter is one character"),
        ({"types": "float"}, 'types is "infer", or a dict'),
        ({"types": {"a": "float"}}, 'types is "infer", or a dict'),
        ({"header": "a,b"}, "header is a list of names"),
        ({"header": True}, "header is a list of names"),
        ({"types": "infer", "format": "jsonl"}, "are for CSV, not for 'jsonl'"),
    ],
    ids=str,
)
def test_an_option_that_is_wrong_says_what_is_right(options: Any, message: str) -> None:
    with pytest.raises(mw.InputError, match=message):
        Files("a.csv", timestamp="t", **options)
