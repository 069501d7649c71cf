"""Input that is no record stops the run with a message, or goes to the stream's errors, never away.

Each case has one piece of bad input among good ones. With ``errors="stop"`` the run ends with a message
that says where and what; with ``errors="divert"`` the good ones are processed, and the bad one is counted
and found on ``STREAM.errors``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from tests.computations import Echo
from tests.input.conftest import Run
from tests.input.reading import write

Files = mw.injectors.Files
Records = mw.injectors.Records

GOOD = ['{"t": 1, "id": "a", "v": 1}', '{"t": 2, "id": "b", "v": 2}']
DEEP = '{"t": 5, "id": "c", "v": ' + "[" * 2_000 + "]" * 2_000 + "}"


class Given(mw.Injector):
    """Gives whatever it was made with."""

    def __init__(self, items: Iterable[Any], errors: Any) -> None:
        self._items = list(items)
        self.errors = errors

    def poll(self) -> Mapping[str, Any]:
        return {"given": len(self._items)}

    def read(self, partition: str, start: Any, end: Any) -> Iterable[Any]:
        return self._items[start or 0 : end]

    def low_watermark(self, partition: str, offset: Any) -> int:
        return mw.MAX_TIME if offset == len(self._items) else mw.MIN_TIME


@dataclass
class Case:
    """A piece of bad input, and what is to be said of it."""

    name: str
    bad: Any
    message: str
    options: dict[str, Any]


def line(name: str, bad: str | bytes, message: str, **options: Any) -> Case:
    return Case(name, bad, message, {"timestamp": "t", **options})


JSONL = [
    line("not JSON", "{oops", "the line is not JSON"),
    line("cut short", '{"t": 5, "v"', "the line is not JSON"),
    line("not UTF-8", b'{"t": 5, "v": "\xff\xfe"}', "the line is not JSON"),
    line("two values", '{"t": 5} {"t": 6}', "the line is not JSON"),
    line("a list", "[1, 2]", "the line is a list, not an object with fields"),
    line("a number", "17", "the line is a int, not an object with fields"),
    line("null", "null", "the line is a NoneType, not an object with fields"),
    line("no timestamp field", '{"time": 5}', "the record has no timestamp field 't'"),
    line(
        "a text for a timestamp", '{"t": "soon"}', "the timestamp field 't' is 'soon', which is not a number"
    ),
    line("digits for a timestamp", '{"t": "5"}', "the timestamp field 't' is '5', which is not a number"),
    line("a bool for a timestamp", '{"t": true}', "the timestamp field 't' is True, which is not a number"),
    line("null for a timestamp", '{"t": null}', "the timestamp field 't' is None, which is not a number"),
    line("a list for a timestamp", '{"t": [5]}', "the timestamp field 't' is [5], which is not a number"),
    line("NaN for a timestamp", '{"t": NaN}', "the line is not JSON"),
    line("a timestamp past 64 bits", '{"t": 1e300}', "out of the range of 64 bits"),
    line(
        "a timestamp past 64 bits in seconds",
        '{"t": 9223372036854775}',
        "out of the range of 64 bits",
        unit="s",
    ),
    line("a timestamp past all numbers", '{"t": 1.7e308}', "out of the range of 64 bits", unit="s"),
    line("a missing ID", '{"t": 5}', "the record has no ID field 'id'", id="id"),
    line(
        "null for an ID", '{"t": 5, "id": null}', "the ID field 'id' is None: an ID is a text or an", id="id"
    ),
    line("a bool for an ID", '{"t": 5, "id": true}', "the ID field 'id' is True", id="id"),
    line("a float for an ID", '{"t": 5, "id": 1.5}', "the ID field 'id' is 1.5", id="id"),
    line("a list for an ID", '{"t": 5, "id": [1]}', "the ID field 'id' is [1]", id="id"),
    line("a value nested too deep", DEEP, "the line is not JSON"),
]

CSV = [
    line("missing fields", "5", "the line has 1 fields, the header has 3"),
    line("fields too many", "5,a,b,c", "the line has 4 fields, the header has 3"),
    line("not UTF-8", b"5,a,\xff\xfe", "the line is not CSV"),
    line("a quote that is not closed", '5,a,"begins and never ends', "the line is not CSV"),
    line("a text for a timestamp", "soon,a,b", "the timestamp field 't' is 'soon', which is not a number"),
    line("nothing for a timestamp", ",a,b", "the timestamp field 't' is '', which is not a number"),
    line("nan for a timestamp", "nan,a,b", "the timestamp field 't' is 'nan', which is not a number"),
    line("inf for a timestamp", "inf,a,b", "the timestamp field 't' is 'inf', which is not a number"),
    line("a timestamp past 64 bits", "9" * 30 + ",a,b", "out of the range of 64 bits"),
    line("a timestamp of 400 digits", "9" * 400 + ",a,b", ""),
]

ISO = [
    line("no ISO time", '{"t": "yesterday"}', "is 'yesterday', which is not an ISO 8601 time", unit="iso"),
    line("a number for an ISO time", '{"t": 5}', "is 5, which is not an ISO 8601 time", unit="iso"),
    line("null for an ISO time", '{"t": null}', "is None, which is not an ISO 8601 time", unit="iso"),
]


def given(name: str, bad: Any, message: str) -> Case:
    return Case(name, bad, message, {})


RECORDS = [
    given(
        "a dict", {"value": 5, "timestamp": 5}, "Given.read returned something other than a millwheel.Record"
    ),
    given("a tuple", (5, 5), "Given.read returned something other than a millwheel.Record"),
    given("None", None, "Given.read returned something other than a millwheel.Record"),
    given("a set for a value", mw.Record(value={1, 2}, timestamp=5), "cannot be encoded"),
    given("a value of more than 64 bits", mw.Record(value=2**70, timestamp=5), "cannot be encoded"),
    given(
        "a float for a timestamp", mw.Record(value=5, timestamp=5.5), "the timestamp 5.5 is not an integer"
    ),  # type: ignore[arg-type]
    given("a text for a timestamp", mw.Record(value=5, timestamp="5"), "the timestamp '5' is not an integer"),  # type: ignore[arg-type]
    given("None for a timestamp", mw.Record(value=5, timestamp=None), "the timestamp None is not an integer"),  # type: ignore[arg-type]
    given(
        "a bool for a timestamp", mw.Record(value=5, timestamp=True), "the timestamp True is not an integer"
    ),
    given("a timestamp past 64 bits", mw.Record(value=5, timestamp=2**63), "out of the range of 64 bits"),
    given("a number for a key", mw.Record(value=5, timestamp=5, key=7), "the key is 7, which is not a str"),  # type: ignore[arg-type]
    given("None for a key", mw.Record(value=5, timestamp=5, key=None), "the key is None, which is not a str"),  # type: ignore[arg-type]
    given("an object for an ID", mw.Record(value=5, timestamp=5, id=object()), "ID"),  # type: ignore[arg-type]
]


ON_SPARK = {
    "not JSON",
    "no timestamp field",
    "a text for a timestamp",
    "a bool for a timestamp",
    "null for a timestamp",
    "NaN for a timestamp",
    "a missing ID",
    "missing fields",
    "a dict",
    "a set for a value",
    "an object for an ID",
}


def everywhere(cases: list[Case]) -> pytest.MarkDecorator:
    """Every case in this process, and those that the tasks of Spark must carry back on Spark as well."""
    params = [pytest.param("here", case, id=case.name) for case in cases]
    params += [
        pytest.param("spark", case, id=f"{case.name} on Spark", marks=pytest.mark.spark)
        for case in cases
        if case.name in ON_SPARK
    ]
    return pytest.mark.parametrize(("run", "case"), params, indirect=["run"])


def _pipeline(injector: mw.Injector) -> tuple[mw.Pipeline, mw.sinks.Collect, mw.sinks.Collect]:
    p = mw.Pipeline("bad input")
    p.inject("in", injector)
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    good, bad = mw.sinks.Collect(), mw.sinks.Collect()
    p.sink("out", good)
    if injector.errors == "divert":
        p.sink("in.errors", bad)
    return p, good, bad


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def _stops(run: Run, injector: mw.Injector, case: Case, partition: str) -> None:
    pipeline, good, _ = _pipeline(injector)
    with pytest.raises(mw.InputError) as caught:
        run(pipeline)
    message = str(caught.value)
    assert case.message in message
    assert "stream 'in'" in message
    assert partition in message
    assert 'errors="divert"' in message
    assert "'in.errors'" in message
    assert good.records == []


def _diverts(run: Run, injector: mw.Injector, case: Case, partition: str, count: int) -> Any:
    pipeline, good, bad = _pipeline(injector)
    report = run(pipeline)
    assert len(good.records) == count
    (diverted,) = bad.records
    assert case.message in diverted.value["error"]
    assert partition in diverted.value["partition"]
    assert report.input_errors == 1
    assert report.streams["in.errors"] == 1
    assert report.streams["in"] == count
    assert report.records_in == count + 1
    assert report.records["C"] == count
    return diverted.value["value"]


def _good(case: Case) -> list[str]:
    if case.options.get("unit") == "iso":
        return ['{"t": "2011-01-27T22:34:01Z"}', '{"t": "2011-01-27"}']
    return GOOD


class TestJsonLines:
    @staticmethod
    def _file(folder: Path, case: Case) -> Path:
        first, second = _good(case)
        return write(folder / "a.jsonl", b"\n".join(map(_bytes, (first, case.bad, second))) + b"\n")

    @everywhere([*JSONL, *ISO])
    def test_a_bad_line_stops_the_run_with_its_message(self, tmp_path: Path, run: Run, case: Case) -> None:
        injector = Files(self._file(tmp_path, case), **case.options)
        _stops(run, injector, case, "a.jsonl")

    @everywhere([*JSONL, *ISO])
    def test_a_bad_line_is_diverted_and_the_others_are_processed(
        self, tmp_path: Path, run: Run, case: Case
    ) -> None:
        injector = Files(self._file(tmp_path, case), errors="divert", **case.options)
        value = _diverts(run, injector, case, "a.jsonl", 2)
        assert value or case.bad == "null"


class TestCsv:
    @staticmethod
    def _file(folder: Path, case: Case) -> Path:
        return write(folder / "a.csv", b"t,v,w\n1,a,b\n" + _bytes(case.bad) + b"\n2,c,d\n")

    @everywhere(CSV)
    def test_a_bad_row_stops_the_run_with_its_message(self, tmp_path: Path, run: Run, case: Case) -> None:
        _stops(run, Files(self._file(tmp_path, case), **case.options), case, "a.csv")

    @everywhere(CSV)
    def test_a_bad_row_is_diverted_and_the_others_are_processed(
        self, tmp_path: Path, run: Run, case: Case
    ) -> None:
        injector = Files(self._file(tmp_path, case), errors="divert", **case.options)
        value = _diverts(run, injector, case, "a.csv", 2)
        text = _bytes(case.bad).decode("utf-8", "replace")
        assert value in (text, dict(zip("tvw", text.split(","), strict=False)))


class TestInjectorsOfOnesOwn:
    @staticmethod
    def _items(case: Case) -> list[Any]:
        return [mw.Record(value=1, timestamp=1), case.bad, mw.Record(value=2, timestamp=2)]

    @everywhere(RECORDS)
    def test_what_is_no_record_stops_the_run_with_its_message(self, run: Run, case: Case) -> None:
        _stops(run, Given(self._items(case), "stop"), case, "given")

    @everywhere(RECORDS)
    def test_what_is_no_record_is_diverted_and_the_others_are_processed(self, run: Run, case: Case) -> None:
        _diverts(run, Given(self._items(case), "divert"), case, "given", 2)


def test_a_list_of_records_is_looked_at_in_the_same_way(run: Run) -> None:
    items: list[Any] = [mw.Record(value=1, timestamp=1), "no record", mw.Record(value=2, timestamp=2)]
    case = given("a text", None, "Records.read returned something other than a millwheel.Record")
    _diverts(run, Records(items, errors="divert"), case, "records", 2)


def test_all_bad_lines_of_a_file_are_diverted_each_with_its_own_message(tmp_path: Path, run: Run) -> None:
    cases = [case for case in JSONL if set(case.options) == {"timestamp"} and case.bad is not DEEP]
    lines = [part for case in cases for part in (GOOD[0], case.bad)]
    write(tmp_path / "a.jsonl", b"\n".join(map(_bytes, lines)))
    pipeline, good, bad = _pipeline(Files(tmp_path / "a.jsonl", timestamp="t", errors="divert"))
    report = run(pipeline)
    assert len(good.records) == len(cases)
    assert report.input_errors == len(bad.records) == len(cases)
    found = sorted(record.value["error"] for record in bad.records)
    for case in cases:
        assert any(case.message in message for message in found), case.name


def test_bad_lines_that_nobody_takes_are_counted_all_the_same(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "a.jsonl", "\n".join([GOOD[0], "oops", "again", GOOD[1]]))
    p = mw.Pipeline("bad input")
    p.inject("in", Files(tmp_path / "a.jsonl", timestamp="t", errors="divert"))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    report = run(p)
    assert report.input_errors == 2
    assert report.streams["in.errors"] == 2
    assert report.records["C"] == 2


def test_a_computation_can_read_the_errors(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "a.jsonl", "\n".join([GOOD[0], "oops", GOOD[1]]))
    p = mw.Pipeline("bad input")
    p.inject("in", Files(tmp_path / "a.jsonl", timestamp="t", errors="divert"))
    p.add(Echo("repaired"), name="Repair", inputs={"in.errors": mw.by("value")}, outputs=["repaired"])
    sink = mw.sinks.Collect()
    p.sink("repaired", sink)
    run(p)
    (record,) = sink.records
    assert record.key == "oops"
    assert record.value["value"] == "oops"


def _no_text(record: mw.Record) -> Any:
    return 7 if record.value == 5 else "k"


def _raises(record: mw.Record) -> str:
    if record.value == 5:
        raise KeyError("no such field")
    return "k"


EXTRACTORS = [
    pytest.param(_raises, "raised KeyError: 'no such field'", id="raises"),
    pytest.param(_no_text, "returned 7, which is neither a str nor SKIP", id="returns no str"),
]


@pytest.mark.parametrize(("extractor", "message"), EXTRACTORS)
class TestKeyExtractors:
    @staticmethod
    def _records() -> list[mw.Record]:
        return [mw.Record(value=value, timestamp=value, key=f"old {value}", id=value) for value in (1, 5, 2)]

    def test_it_stops_the_run_and_names_the_computation_the_stream_and_the_record(
        self, run: Run, extractor: Any, message: str
    ) -> None:
        p = mw.Pipeline("bad keys")
        p.inject("in", Records(self._records()))
        p.add(Echo(), name="C", inputs={"in": extractor}, outputs=["out"])
        with pytest.raises(mw.UserCodeError) as caught:
            run(p)
        text = str(caught.value)
        assert message in text
        assert "computation 'C'" in text
        assert "stream 'in'" in text
        assert "value=5" in text
        assert caught.value.computation == "C"
        assert caught.value.record.value == 5

    def test_with_an_injector_that_diverts_it_goes_to_the_errors_of_the_stream(
        self, run: Run, extractor: Any, message: str
    ) -> None:
        p = mw.Pipeline("bad keys")
        p.inject("in", Records(self._records(), errors="divert"))
        p.add(Echo(), name="C", inputs={"in": extractor}, outputs=["out"])
        p.add(Echo("all"), name="D", inputs={"in": mw.by_key}, outputs=["all"])
        sinks = {stream: mw.sinks.Collect() for stream in ("out", "all", "in.errors")}
        for stream, sink in sinks.items():
            p.sink(stream, sink)
        report = run(p)
        assert sorted(record.value for record in sinks["out"].records) == [1, 2]
        assert sorted(record.value for record in sinks["all"].records) == [1, 2, 5]
        (diverted,) = sinks["in.errors"].records
        assert message in diverted.value["error"]
        assert diverted.value["value"] == 5
        assert (diverted.key, diverted.timestamp) == ("old 5", 5)
        assert report.failed["C"] == 1
        assert report.failed["D"] == 0
        assert report.streams["in.errors"] == 1

    def test_with_a_computation_that_diverts_it_goes_to_the_errors_of_the_computation(
        self, run: Run, extractor: Any, message: str
    ) -> None:
        p = mw.Pipeline("bad keys")
        p.inject("in", Records(self._records()))
        p.add(Echo(), name="C", inputs={"in": extractor}, outputs=["out"], errors="divert")
        good, bad = mw.sinks.Collect(), mw.sinks.Collect()
        p.sink("out", good)
        p.sink("C.errors", bad)
        report = run(p)
        assert sorted(record.value for record in good.records) == [1, 2]
        (diverted,) = bad.records
        assert message in diverted.value["error"]
        assert diverted.value["value"] == 5
        assert report.failed["C"] == 1


def test_a_field_that_a_line_has_not_is_told_with_the_extractor(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "a.jsonl", '{"t": 1, "user": "u"}\n{"t": 2}\n{"t": 3, "user": null}\n')
    p = mw.Pipeline("bad keys")
    p.inject("in", Files(tmp_path / "a.jsonl", timestamp="t", errors="divert"))
    p.add(Echo(), name="C", inputs={"in": mw.by("user")}, outputs=["out"])
    bad = mw.sinks.Collect()
    p.sink("in.errors", bad)
    report = run(p)
    assert report.records["C"] == 1
    messages = sorted(record.value["error"] for record in bad.records)
    assert len(messages) == 2
    assert all("by('user')" in message for message in messages)
    assert any("raised KeyError" in message for message in messages)
    assert any("returned None" in message for message in messages)
