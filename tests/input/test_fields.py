"""Lines of which only some fields are decoded give the same records as lines that are decoded whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.injectors import json_fields
from millwheel.injectors.lines import Reader
from millwheel.model.batch import RecordBatch
from tests.input.conftest import Run
from tests.input.reading import write

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3))
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "t": st.integers(-10, 2**64) | VALUES,
        "id": st.text(max_size=3) | st.integers() | VALUES,
        "k": st.text(max_size=3) | st.integers() | VALUES,
        "other": VALUES,
    },
)
BROKEN = st.sampled_from(
    [
        b"",
        b"  ",
        b"{",
        b'{"t": 1, "id": 1, "k": "a", "x": 1e400}',
        b'{"t": 1, "id": 1, "k": "a", "x": "\xff"}',
        b'{"t": 1, "id": 1, "k": "a", "x": "\\ud800"}',
        b'{"t": 1, "id": 1, "k": "a", "x": tru}',
        b'{"t": 1, "t": 2, "id": 1, "k": "a", "k": "b"}',
        b'{"t": 1, "id": 1, "k": "a"} {}',
        b"[1]",
        b"7",
        b'{"t": 1, "id": 1, "k": "a", "x": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ]
)


def _try(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
        return True
    except ValueError:
        return False


@given(st.lists(RECORDS.filter(_try).map(lambda value: json.dumps(value).encode()) | BROKEN, max_size=6))
def test_the_same_records_and_the_same_bad_input(lines: list[bytes]) -> None:
    reader = Reader("t", "id", "ms", "jsonl", divert=True)
    text = b"\n".join(lines)
    whole = reader.batch_of(text, [], None)
    some = reader.batch_of(text, [], ["k"])
    # A number that no float holds is refused where its line is decoded, and not where it is not.
    if b"1e400" in text and some.fields is not None:
        return
    if some.fields is not None:
        assert some.fields == {"k": [value["k"] for value in whole.values]}
    decoded = some.decoded()
    assert decoded.timestamps == whole.timestamps
    assert repr(decoded.values) == repr(whole.values)  # by text: a NaN is not equal to itself
    assert decoded.ids == whole.ids
    assert decoded.bad == whole.bad


def test_the_fast_way_is_taken() -> None:
    lines = [b'{"t": 5, "k": "a", "deep": {"k": "no"}}', b'{"k": 7, "t": 6}']
    found = json_fields.read(lines, "t", None, ("k",))
    assert found == RecordBatch([5, 6], [], json=lines, fields={"k": ["a", 7]})
    found = json_fields.read(lines, "t", "k", ("k", "t"))
    assert found == RecordBatch([5, 6], [], ["a", 7], json=lines, fields={"k": ["a", 7], "t": [5, 6]})


@pytest.mark.parametrize(
    "line", ['{"t": 1}', '{"t": 1.5, "k": "a"}', '{"t": 1, "k": null}', '{"t": true, "k": ""}']
)
def test_what_is_no_field_needs_a_closer_look(line: str) -> None:
    assert json_fields.read([b'{"t": 1, "k": "a"}', line.encode()], "t", None, ("k",)) is None


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"t": 1, "k": "a"}', b"", b'{"t": 2, "k": "b"}'],
        [b'{"t": 1, "k": "a"} {"t": 2, "k": "b"}'],
        [b'{"t": 1,', b'"k": "a"}', b'{"t": 2, "k": "b"} {"t": 3, "k": "c"}'],  # as many objects as lines
    ],
)
def test_what_is_not_one_object_a_line_needs_a_closer_look(lines: list[bytes]) -> None:
    assert json_fields.read(lines, "t", None, ("k",)) is None


class Keep(mw.Computation):
    """Passes on what it gets."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, record: mw.Record) -> None:
        self.produce(self.output, [record.key, record.value])


def test_keys_by_a_field_and_by_a_function_agree(tmp_path: Path, run: Run) -> None:
    """The one decodes fields, the other whole lines; the values that hooks see are the same."""
    lines = [
        '{"t": 1, "who": "é", "what": [1, {"a": null}]}',
        '{"t": 2, "who": 7}',
        '{"t": 3, "who": "b", "what": "\\ud83d\\ude00"}',
        '{"t": 4, "who": "c", "what": {"who": "d"}}',
    ]
    path = write(tmp_path / "in.jsonl", "\n".join([*lines, ""]))
    sinks = {name: mw.sinks.Collect() for name in ("field", "function")}
    p = mw.Pipeline("fields")
    for name, extractor in {"field": mw.by("who"), "function": lambda r: str(r.value["who"])}.items():
        p.inject(f"to {name}", mw.injectors.Files(str(path), timestamp="t"))
        p.add(Keep(name), name=name.title(), inputs={f"to {name}": extractor}, outputs=[name])
        p.sink(name, sinks[name])
    run(p)
    found = [
        sorted((r.value[0], r.timestamp, json.dumps(r.value[1])) for r in s.records) for s in sinks.values()
    ]
    assert found[0] == found[1]
    assert [key for key, _, _ in found[0]] == ["7", "b", "c", "é"]


def test_a_number_that_no_float_holds_is_seen_where_somebody_looks(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "in.jsonl", '{"t": 1, "who": "a", "what": 1e400}\n')
    sink = mw.sinks.Collect()
    p = mw.Pipeline("fields")
    p.inject("lines", mw.injectors.Files(str(path), timestamp="t"))
    p.add(Keep("kept"), inputs={"lines": mw.by("who")}, outputs=["kept"])
    p.sink("kept", sink)
    run(p)
    assert [record.value for record in sink.records] == [["a", {"t": 1, "who": "a", "what": float("inf")}]]


@pytest.mark.parametrize(
    ("extractor", "keys"),
    [
        (mw.by("who", "where"), ["a\\||b", "a|\\|b", "7|\\\\"]),
        (mw.by("at.x"), ["1", "y", "whole"]),
        (mw.by("at.x", "where"), ["1|b", "y|\\|b", "whole|\\\\"]),
    ],
)
def test_several_and_nested_fields_of_lines(
    extractor: Any, keys: list[str], tmp_path: Path, run: Run
) -> None:
    lines = [
        '{"t": 1, "who": "a|", "where": "b", "at": {"x": 1}}',
        '{"t": 2, "who": "a", "where": "|b", "at": {"x": "y"}}',
        '{"t": 3, "who": 7, "where": "\\\\", "at.x": "whole", "at": {"x": 2}}',
    ]
    path = write(tmp_path / "in.jsonl", "\n".join([*lines, ""]))
    sink = mw.sinks.Collect()
    p = mw.Pipeline("fields")
    p.inject("in", mw.injectors.Files(str(path), timestamp="t"))
    p.add(Keep("out"), inputs={"in": extractor}, outputs=["out"])
    p.sink("out", sink)
    run(p)
    records = sorted(sink.records, key=lambda record: record.timestamp)
    assert [record.value for record in records] == [
        [key, json.loads(line)] for key, line in zip(keys, lines, strict=True)
    ]


def test_optional_fields_may_be_missing_or_of_any_kind_but_lists_and_objects() -> None:
    lines = [b'{"t": 1, "k": "a", "n": 2}', b'{"t": 2, "k": "b"}', b'{"t": 3, "k": "c", "n": null}']
    found = json_fields.read(lines, "t", None, ("k", "n"), frozenset({"n"}))
    assert found is not None
    assert found.timestamps == [1, 2, 3]
    assert found.fields == {"k": ["a", "b", "c"], "n": [2, None, None]}
    kinds = [b'{"t": 1, "n": 2.5}', b'{"t": 2, "n": "x"}', b'{"t": 3, "n": true}', b'{"t": 4, "n": 7.0}']
    found = json_fields.read(kinds, "t", None, ("n",), frozenset({"n"}))
    assert found is not None
    assert found.fields == {"n": [2.5, "x", True, 7.0]}
    for text in (b"[1]", b'{"x": 1}', b"18446744073709551615"):
        assert json_fields.read([b'{"t": 1, "n": %s}' % text], "t", None, ("n",), frozenset({"n"})) is None
