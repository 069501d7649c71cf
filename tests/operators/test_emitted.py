"""What closed windows emit, as columns: it reads, travels and is written as the values themselves."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.ending import Start
from millwheel.model.batch import RecordBatch, join
from millwheel.model.emitted import Emitted, Results, Span
from millwheel.sinks import line_text
from millwheel.sinks.line_text import lines_of, window_lines
from millwheel.store.open import open_store
from millwheel.worker.envelope import pack_columns, unpack_columns
from tests.store.driving import run_to_the_end, take

KEYS = ["", "a", "ü", "日本", "\ud800", 'a",', '","', "\\", "\n\t\x00", "\x7f\u2028", "k" * 600, "{}", "null"]
VALUES = [
    0,
    1,
    -1,
    2**63 - 1,
    2**64 - 1,
    1.5,
    -0.0,
    1e300,
    float("inf"),
    None,
    True,
    "text, more",
    [1],
]


def drawn(rng: random.Random) -> Emitted:
    """Windows of some keys, with results of one kind or of all kinds."""
    found = Emitted(["n", 'odd "name"'])
    for _ in range(rng.randrange(1, 4)):
        spans = [Span(start, start + 10, rng.randrange(1, 6)) for start in (0, -10, 2**63 - 5)]
        keys = [rng.choice(KEYS) for span in spans for _ in range(span.records)]
        numbers = Results(
            "h", b"".join(rng.randrange(-9, 9).to_bytes(2, "little", signed=True) for _ in keys)
        )
        kind = rng.choice([VALUES, VALUES[:3], VALUES[6:9], VALUES[10:12]])
        found.add(keys, spans, [numbers, Results.of([rng.choice(kind) for _ in keys])])
    return found


def batch_of(windows: Emitted) -> RecordBatch:
    return RecordBatch(windows.timestamps(), [], keys=windows.keys, windows=windows)


@pytest.mark.parametrize("seed", range(40))
def test_lines_of_windows_are_those_of_their_values(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    windows = drawn(rng)
    monkeypatch.setattr(line_text, "PIECE", rng.choice([1, 3, 2_000]))
    written = b"".join(window_lines(windows))
    by_value = list(zip(windows.keys, windows.timestamps(), windows.values(), strict=True))
    lines = [json.loads(lines_of([key], [time], [value])) for key, time, value in by_value]
    assert [json.loads(line) for line in written.splitlines(keepends=True)] == lines
    assert written.count(b"\n") == len(lines)


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_of_windows_does_what_a_batch_of_their_values_does(seed: int) -> None:
    rng = random.Random(seed)
    windows, more = drawn(rng), drawn(rng)
    values = windows.values()
    plain = RecordBatch(windows.timestamps(), windows.values(), keys=list(windows.keys))
    batch = batch_of(windows)
    assert list(batch.records()) == list(plain.records())
    assert list(unpack_columns(pack_columns(batch))[0].records()) == list(plain.records())
    some = sorted(rng.sample(range(len(values)), rng.randrange(len(values))))
    assert list(batch.take(some).records()) == list(plain.take(some).records())
    assert list(batch.take(some).decoded().records()) == list(plain.take(some).records())
    assert [batch.value(position) for position in some] == [values[position] for position in some]
    both = join([batch, batch_of(more)])
    assert both.windows is not None
    assert both.objects() == values + more.values()
    assert both.keys == windows.keys + more.keys
    mixed = join([batch, RecordBatch([1], ["else"], keys=["k"])])
    assert mixed.objects() == [*values, "else"]
    again = unpack_columns(pack_columns(batch))[0]
    again.extend(batch_of(more))
    assert list(again.records()) == list(both.records())


def test_who_changes_a_value_of_a_window_changes_it_for_nobody_else() -> None:
    windows = Emitted(["n"], ["a"], [Span(0, 10, 1)], [[Results.of([[1]])]])
    windows.values()[0]["n"].append(2)
    assert windows.values() == [{"key": "a", "start": 0, "end": 10, "n": [1]}]


def test_consumers_behind_windows_of_any_kind_get_the_values_that_a_sink_gets(tmp_path: Path) -> None:
    class Keep(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            record.value["seen"] = True
            self.produce("kept", record.value)

    p = mw.Pipeline("behind")
    records = [mw.Record({"k": f"k{n % 300}", "n": n}, timestamp=n) for n in range(1_000)]
    windowed = p.inject("in", mw.injectors.Records(records)).key_by("k").window(mw.windows.tumbling(500))
    out = windowed.aggregate("out", n=mw.agg.count(), mean=mw.agg.mean("n"), most=mw.agg.max("none"))
    sinks = {name: mw.sinks.Collect() for name in ("out", "kept", "even", "again")}
    p.add(Keep(), inputs={"out": mw.by_key}, outputs=["kept"])
    out.filter(lambda value: value["mean"] % 2 == 0).named("even")
    out.key_by("start").window(mw.windows.tumbling(500)).aggregate("again", n=mw.agg.sum("n"))
    for name, sink in sinks.items():
        p.stream(name).sink(sink)
    written = mw.sinks.JsonLines(tmp_path / "out")
    out.sink(written)
    driver, executor = take(p, open_store("memory:"), slots=2, start=Start.RUN)
    run_to_the_end(driver, executor)
    driver.close()

    def shown(found: Any) -> list[str]:
        return sorted(f"{record.key} {record.timestamp} {record.value}" for record in found)

    wanted = [
        {"key": f"k{k}", "start": start, "end": start + 500, "n": len(mine), "mean": sum(mine) / len(mine)}
        for k in range(300)
        for start in (0, 500)
        if (mine := [n for n in range(start, start + 500) if n % 300 == k])
    ]
    wanted = [{**value, "most": None} for value in wanted]
    found = [mw.Record(value, value["end"] - 1, value["key"]) for value in wanted]
    assert shown(sinks["out"].records) == shown(written.records()) == shown(found)
    kept = [mw.Record({**r.value, "seen": True}, r.timestamp, r.key) for r in found]
    assert shown(sinks["kept"].records) == shown(kept)
    assert shown(sinks["even"].records) == shown(r for r in found if r.value["mean"] % 2 == 0)
    assert sorted((r.key, r.value["n"]) for r in sinks["again"].records) == [("0", 500), ("500", 500)]
