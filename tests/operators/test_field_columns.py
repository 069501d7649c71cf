"""Fields read as columns: files of JSON lines and Parquet give what rows by key and whole records give."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.injectors import lines
from millwheel.injectors.json_fields import read_columns
from millwheel.master.ending import Start
from millwheel.model.injector import FieldNames, RecordBatch
from millwheel.operators import foldings
from millwheel.store.open import open_store
from millwheel.watch.explain import explain
from millwheel.worker import inject, route
from tests.store.driving import run, run_to_the_end, take

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

KEYS: dict[str, list[Any]] = {
    "texts": ["a", "b", "", "ü", "日本", 'q"|\\', "k" * 600, "{}", "1"],
    "numbers": [0, -1, 7, 2**62],
    "few": ["x", "y"],
}
ODD_KEYS: dict[str, list[Any]] = {
    "null": ["a", None],
    "truth": [True, False],
    "broken": [1.5, 2.0],
    "mixed": ["1", 1, "a"],
    "lists": [["a"], []],
    "objects": [{"a": 1}],
}
FIELDS: dict[str, list[Any]] = {
    "whole": [0, 3, -7, None],
    "broken": [0.5, -2.25, None],
    "huge": [2**62, -(2**62), 5],
    "nan": [1.0, float("nan")],
    "small": [1, 2, 3],
    "truth": [True, False, None],
    "text": ["x", "y"],
    "nothing": [None],
    "mixed": [1, 2.5, None],
    "large": [2**63, 2**63 + 1],
}
IN_A_TABLE = {"mixed"}  # has no column of Arrow


class Drawn:
    """Files, a query and what is done to it, by a seed."""

    def __init__(self, seed: int, form: str) -> None:
        rng = self.rng = random.Random(seed)
        self.form = form
        kinds = KEYS | ODD_KEYS if seed % 4 == 0 else KEYS
        if form == "parquet":
            kinds = {name: values for name, values in kinds.items() if name not in IN_A_TABLE}
        self.keys = [rng.choice(sorted(kinds)) for _ in range(rng.choice([1, 1, 2, 3]))]
        self.unit = rng.choice(["us", "ms", "s", "auto", None])
        self.lacks = rng.random() < 0.2
        count = rng.choice([70, 150, 400])
        names = [name for name in FIELDS if form != "parquet" or name not in IN_A_TABLE]
        self.fields = rng.sample(names, 3)
        self.rows = []
        for number in range(count):
            row: dict[str, Any] = {f"k{i}": rng.choice(kinds[kind]) for i, kind in enumerate(self.keys)}
            row |= {name: rng.choice(FIELDS[name]) for name in self.fields}
            row["at"] = self._time(1_500_000_000 + number * 3 - rng.choice([0, 5, 40]))
            row["unused"] = f"line {number}"
            if form != "parquet" and rng.random() < 0.1 * self.lacks:
                row.pop(rng.choice(self.fields))
            self.rows.append(row)
        self.slots = [rng.choice([1, 2, 3]) for _ in range(3)]
        self.bound = rng.choice([30, 100, 10_000])
        self.size = rng.choice([10, 25])
        self.every = rng.choice([self.size, 5])
        self.aggregates = self._aggregates(rng)

    def _time(self, seconds: int) -> int:
        return seconds * {"s": 1, "ms": 1_000}.get(self.unit or "us", 1_000_000)

    def _aggregates(self, rng: random.Random) -> dict[str, Any]:
        found: dict[str, Any] = {"n": mw.agg.count()}
        for name in [*self.fields, "absent"]:
            kinds = ["sum", "mean", "max", "count"]
            if name == "text":
                kinds = ["count", "min", "max"]
            elif name in ("truth", "nan"):
                kinds.append("min")
            found[f"{name}_"] = getattr(mw.agg, rng.choice(kinds))(name)
        return found

    def write(self, folder: Path) -> str:
        for number, first in enumerate(range(0, len(self.rows), 130)):
            rows = self.rows[first : first + 130]
            if self.form == "parquet":
                path = folder / f"{number}.parquet"
                pq.write_table(table_of(rows, self.keys, number), path, row_group_size=50)
            else:
                spaces = " " if number else ""
                text = "".join(spaces + json.dumps(row, ensure_ascii=bool(number)) + "\n" for row in rows)
                (folder / f"{number}.jsonl").write_text(text)
        return str(folder / "*")

    def pipeline(self, pattern: str) -> tuple[mw.Pipeline, mw.sinks.Collect]:
        p = mw.Pipeline("drawn")
        sink = mw.sinks.Collect()
        unit: Any = self.unit
        source = mw.injectors.Files(pattern, timestamp="at", unit=unit, slack=20 * mw.SECOND)
        keyed = p.inject("in", source).key_by(*(f"k{i}" for i in range(len(self.keys))))
        window = mw.windows.sliding(self.size * mw.SECOND, self.every * mw.SECOND)
        keyed.window(window).aggregate("out", **self.aggregates).sink(sink)
        return p, sink

    def run(self, pattern: str) -> Any:
        """What comes out, over drivers that are dropped and taken over with another number of slots."""
        store = open_store("memory:")
        found: list[Any] = []
        report = None
        for turn, slots in enumerate(self.slots):
            p, sink = self.pipeline(pattern)
            start = Start.RUN if turn == 0 else Start.RECOVERY
            driver, executor = take(p, store, slots=slots, start=start)
            driver.sizer.bound = self.bound
            driver.sizer.learn = lambda *_: None  # type: ignore[method-assign]
            try:
                if turn < len(self.slots) - 1:
                    plan = driver.next_plan()
                    if plan is not None:
                        driver.run(plan, executor)
                else:
                    report = run_to_the_end(driver, executor)
            except mw.MillWheelError as error:
                return type(error).__name__
            finally:
                driver.close()
            found += [(r.key, r.timestamp, shown(r.value)) for r in sink.records]
        assert report is not None
        return sorted(found, key=str), [report.records_in, report.late, report.dropped]


def table_of(rows: list[dict[str, Any]], keys: list[str], number: int) -> Any:
    """A table, with types that differ from file to file."""
    arrays = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        kind = None
        if name == "large":
            kind = pa.uint64()
        elif name in ("small", "whole") and number % 2:
            kind = pa.int16()
        elif name.startswith("k") and isinstance(values[0], str) and number % 2:
            kind = pa.dictionary(pa.int32(), pa.string())
        elif name == "broken" and number % 2:
            kind = pa.float32()
        arrays[name] = pa.array(values, kind)
    return pa.table(arrays)


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return (type(value).__name__, round(value, 6) if isinstance(value, float) else value)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("seed", range(45))
def test_columns_of_files_give_what_records_and_rows_by_key_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, form: str
) -> None:
    drawn = Drawn(seed, form)
    pattern = drawn.write(tmp_path)
    monkeypatch.setattr(lines, "FEW", 1)
    monkeypatch.setattr(route, "WORTH_IT", 1)
    columns = drawn.run(pattern)
    real = inject.needed_fields
    monkeypatch.setattr(
        inject, "needed_fields", lambda *args: None if real(*args) is None else without_columns(real(*args))
    )
    records = drawn.run(pattern)
    monkeypatch.setattr(foldings, "BY_COLUMNS", False)
    assert columns == records == drawn.run(pattern)


@pytest.mark.parametrize("key", [[1], {"a": 1}, b"a", 1.5, True], ids=str)
def test_a_key_of_another_type_names_the_record_also_where_tables_are_read_as_columns(
    tmp_path: Path, key: Any
) -> None:
    pq.write_table(pa.table({"at": range(200), "k0": [key] * 200}), tmp_path / "a.parquet")
    p = mw.Pipeline("odd")
    source = mw.injectors.Files(tmp_path / "*", timestamp="at", unit="us")
    p.inject("in", source).key_by("k0").window(mw.windows.tumbling(10)).count("out")
    with pytest.raises(mw.UserCodeError) as caught:
        run(p, open_store("memory:"))
    assert caught.value.computation == "out"
    assert caught.value.record.value == {"at": 0, "k0": key}


def without_columns(names: Any) -> FieldNames:
    return FieldNames([name for name in names if name not in names.optional], names.optional)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_most_files_are_read_as_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Else what is compared above would be one path with itself."""
    rows = [{"at": n, "k0": f"k{n % 7}", "n": n} for n in range(500)]
    if form == "parquet":
        pq.write_table(
            pa.table({name: [row[name] for row in rows] for name in rows[0]}), tmp_path / "a.parquet"
        )
    else:
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = mw.injectors.Files(str(tmp_path / "*"), timestamp="at", unit="us")
    source.open(follow=False)
    ((partition, end),) = source.poll().items()
    names = FieldNames(["k0"], ["n"], columns=True)
    (found,) = source.read_fields(partition, None, end, names)
    assert not isinstance(found, RecordBatch)
    assert len(found) == 500
    assert [record.value for record in found.records().records()] == rows
    assert [record.value for record in found.records(3).records()] == rows[:3]
    (both,) = found.join([found])
    assert [record.value for record in both.records().records()] == rows * 2
    assert both.timestamps.tolist() == [row["at"] for row in rows] * 2


GOOD = b'{"t":1,"k":"a"}\n'


@pytest.mark.parametrize(
    "text",
    [
        b'{"t":1,"k":"a"} {"t":2,"k":"b"}\n',
        b'{"t":1,"k":"a"}{"t":2,"k":"b"}\n',
        b'{"t":1,\n"k":"a"}\n',
        b'{"t":1,"k":{}\n}\n',
        b'{"t":1,"k":"a"}\n\n{"t":2,"k":"b"}\n',
        b'{"t":1,"k":"a"}\n{"t":2,\n{"k":"b"}\n',
        b'{"t":1,"k":"a"} {"t":2,"k":"b"}\n{"t":3,\n"k":"c"}\n',
        b'{"t":1,"k":"a"}\r\n',
        b'{"t":1,"k":"a"}',
        b'{"t":1}\n',
        b'{"t":1.0,"k":"a"}\n',
        b"[]\n",
    ],
)
@pytest.mark.parametrize("around", [0, 1, 10_000])
def test_lines_that_are_not_one_object_each_are_not_read_as_columns(text: bytes, around: int) -> None:
    assert read_columns(GOOD * around + GOOD, "t", ["k"]) is not None
    assert read_columns(GOOD * around + text, "t", ["k"]) is None
    if text.endswith(b"\n"):
        assert read_columns(text + GOOD * around, "t", ["k"]) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("", "stream 'in': read as columns where the injector can, and added up there"),
        ("map", "each record is an object, and added up where it is made"),
        ("filter", "each record is an object, and added up where it is made"),
        ("key", "each record is an object, and added up where it is made"),
        ("function", "each record is an object, as an aggregate reads whole values"),
        ("lateness", "its windows are kept by key, and each record is an object"),
    ],
)
def test_explain_says_whether_columns_or_objects_are_used(change: str, said: str) -> None:
    p = mw.Pipeline("explained")
    stream = p.inject("in", mw.injectors.Records([]))
    if change == "map":
        stream = stream.map(lambda value: value)
    elif change == "filter":
        stream = stream.filter(bool)
    keyed = stream.key_by((lambda value: value["k"]) if change == "key" else "k")
    windowed = keyed.window(mw.windows.tumbling(10), lateness=5 if change == "lateness" else 0)
    windowed.aggregate("out", n=mw.agg.sum((lambda value: value["n"]) if change == "function" else "n"))
    store = open_store("memory:")
    driver, _ = take(p, store, start=Start.RUN)
    found = explain(store, "out")
    driver.close()
    assert said in found.form
    assert str(found).endswith(f"out: {found.form}")
    assert found.form.startswith(
        "its windows are kept " + ("by key" if change == "lateness" else "as columns")
    )
