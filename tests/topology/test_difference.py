"""The difference between two pipelines is shown whether one runs or not; what cannot be is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.master.diff import Change, change
from millwheel.master.topology import fingerprint
from millwheel.model.graph import build
from tests.topology.changing import Changing, Log

_FIELD = "a"


class Both(mw.Computation):
    def process_record(self, record: mw.Record) -> None:
        self.state["n"] = 1


def _pipeline(
    *, key: Any = mw.by_key, name: str = "differs", codec: Any = None, new: bool = False
) -> mw.Pipeline:
    p = mw.Pipeline(name)
    p.inject("in", Log())
    both = Both()
    if codec is not None:
        both.codec = codec
    p.add(both, name="Both", inputs={"in": key}, outputs=["out"])
    p.sink("out", mw.sinks.Collect())
    if new:
        p.inject("more", Log())
        p.add(Both(), name="New", inputs={"more": mw.by_key, "out": mw.by_key})
        p.sink("more", mw.sinks.Collect())
    else:
        p.add(Both(), name="Old", inputs={"in": mw.by_key})
    return p


def _change(old: mw.Pipeline, new: mw.Pipeline, *records: mw.Record) -> Change:
    running = Changing(old)
    injector = old.sources[0].injector
    assert isinstance(injector, Log)
    injector.append(*records)
    running.settle()
    running.driver.close()
    return change(build(new), running.store)


def test_every_part_is_named() -> None:
    found = _change(_pipeline(), _pipeline(new=True))
    assert found == Change(
        added=("New",),
        removed=("Old",),
        kept=("Both",),
        injectors_added=("more",),
        injectors_removed=(),
        sinks_added=("more to Collect",),
        sinks_removed=(),
        edges_added=(),
        edges_removed=(),
    )
    assert str(found) == "adds New; removes Old; keeps Both; injects more; writes more to Collect"


def test_edges_of_what_is_kept_are_named() -> None:
    new = _pipeline()
    new.remove("Both")
    new.inject("side", Log())
    new.add(Both(), name="Both", inputs={"in": mw.by_key, "side": mw.by_key}, outputs=["out", "other"])
    found = _change(_pipeline(), new)
    assert found.edges_added == ("Both to other", "side to Both")
    assert not found.refusals


RECORD = mw.Record(key="k", value=1, timestamp=1)


def test_all_that_stands_against_it_is_told_at_once() -> None:
    new = _pipeline(key=mw.by("x"), codec=mw.codecs.json)
    found = _change(_pipeline(), new, RECORD)
    assert len(found.refusals) == 2
    assert "the key extractor was by_key and now is by('x')" in found.refusals[1]
    assert "the codec millwheel.codecs.json cannot read the state" in found.refusals[0]
    with pytest.raises(mw.PipelineError, match=r"cannot read.*; computation 'Both', stream 'in'"):
        found.check()
    assert "belongs to it" in _change(_pipeline(), _pipeline(name="other")).refusals[0]


def test_another_codec_that_reads_what_is_there_is_taken() -> None:
    class Twice:
        def encode(self, value: Any) -> bytes:
            return mw.codecs.msgpack.encode(value)

        def decode(self, data: bytes) -> Any:
            return mw.codecs.msgpack.decode(data)

    assert not _change(_pipeline(), _pipeline(codec=Twice()), RECORD).refusals


class Extracts:
    """An extractor with something in it."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __call__(self, record: mw.Record) -> str:
        return str(record.value[self.field])


def _closing(field: str) -> Callable[[mw.Record], str]:
    return lambda record: str(record.value[field])


def _helper(record: mw.Record) -> Any:
    return record.value[_FIELD]


def _with_default(record: mw.Record, field: str = "a") -> Any:
    return record.value[field]


SAME: list[Callable[[], Any]] = [
    lambda: mw.by("a"),
    lambda: mw.by_key,
    lambda: Extracts("a"),
    lambda: _closing("a"),
    lambda: functools.partial(_with_default, field="b"),
    lambda: _helper,
    lambda: str.upper,
    lambda: lambda record: [_helper(record) for _ in "ab"],
]


def test_the_same_extractor_made_again_is_the_same() -> None:
    for make in SAME:
        assert fingerprint(make()) == fingerprint(make())


def test_other_extractors_are_told_apart() -> None:
    others = [make() for make in SAME]
    others += [mw.by("b"), Extracts("b"), _closing("b"), functools.partial(_with_default, field="c")]
    others += [_with_default, lambda record: record.value["b"], lambda record, field="c": record.value[field]]
    assert len({fingerprint(other) for other in others}) == len(others)


def test_a_constant_that_an_extractor_uses_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(lambda record: _helper(record))
    monkeypatch.setitem(_helper.__globals__, "_FIELD", "b")
    assert fingerprint(lambda record: _helper(record)) != before


def test_where_it_stands_in_its_file_does_not_matter() -> None:
    code = "def f(record):\n    return [x for x in record.value if (lambda y: y)(x)][0]\n"
    one: dict[str, Any] = {}
    other: dict[str, Any] = {}
    exec(compile(code, "one.py", "exec"), one)
    exec(compile("\n\n" + code, "other.py", "exec"), other)
    assert fingerprint(one["f"]) == fingerprint(other["f"])
