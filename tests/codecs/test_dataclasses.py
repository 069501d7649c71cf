"""Dataclasses travel as values and states, alone and inside of others."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.errors import CodecError
from millwheel.model import codec as module
from millwheel.model.codec import pack, packer, unpack
from tests.codecs.shapes import Label, Measured, Point, Shape

codec = mw.codecs.msgpack


def back(value: Any) -> Any:
    return codec.decode(codec.encode(value))


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2.5),
        [Point(1)],
        [Point(1), Point(2), 3],
        [0, Point(1), "behind"],
        {"a": Point(1), "b": Point(2), "c": 3},
        Shape("alone"),
        Shape("square", [Point(0), Point(1)], {"l": Label("x")}, extra=Shape("inner", [Point(9)])),
        [[Shape("s", [Point(1)])], {"k": [Label("y")]}],
        {Label("key"): 1, Label("other"): [Label("value")]},
        Shape("tuple keys", extra={(1, 2): Point(3)}),
        {(1, 2): Point(3), "p": [Point(4)]},
        Measured(3, 4),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_dataclass_comes_back_wherever_it_stands(value: Any) -> None:
    assert back(value) == value
    assert unpack(packer()(value)) == value
    assert unpack(pack(value)) == value


def test_a_value_behind_a_dataclass_is_not_harmed() -> None:
    value = ["before", Point(1), "behind", {"k": [Point(2), b"last"]}]
    assert back(value) == value


_points = st.builds(Point, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
_labels = st.builds(Label, st.text(max_size=5))
_trees = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=5) | _points | _labels,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | _labels, inner, max_size=3)
        | st.builds(
            Shape,
            st.text(max_size=5),
            st.lists(_points, max_size=3),
            st.dictionaries(st.text(max_size=3), _labels, max_size=2),
            inner,
        )
    ),
    max_leaves=12,
)


@given(_trees)
def test_every_tree_of_dataclasses_comes_back(value: Any) -> None:
    assert back(value) == value


def test_a_field_that_is_not_in_the_constructor_comes_back_as_it_was() -> None:
    measured = Measured(3, 4)
    measured.area = 99
    assert back(measured) == measured


def test_a_field_that_the_class_no_longer_has_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.encode(Shape("s", [Point(1)]))

    @dataclass
    class Smaller:
        name: str

    monkeypatch.setitem(module.registry, "tests.codecs.shapes:Shape", Smaller)
    assert codec.decode(data) == Smaller("s")


def test_a_field_that_the_class_has_gained_takes_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.encode(Label("s"))

    @dataclass
    class Larger:
        text: str
        size: int = 7

    monkeypatch.setitem(module.registry, "tests.codecs.shapes:Label", Larger)
    assert codec.decode(data) == Larger("s", 7)


class TestUnknownClasses:
    def test_a_class_of_no_module_is_named_and_the_cure_with_it(self) -> None:
        data = _of_a_class("nowhere.at_all:Thing")
        with pytest.raises(CodecError, match=r"nowhere\.at_all:Thing is unknown here.*@millwheel\.register"):
            codec.decode(data)

    def test_a_class_that_its_module_has_not_is_named(self) -> None:
        data = _of_a_class("tests.codecs.shapes:Circle")
        with pytest.raises(CodecError, match=r"tests\.codecs\.shapes:Circle is unknown here.*register"):
            codec.decode(data)

    def test_a_local_class_is_named(self) -> None:
        data = _of_a_class("tests.codecs.shapes:make.<locals>.Thing")
        with pytest.raises(CodecError, match=r"<locals>\.Thing is unknown here.*register"):
            codec.decode(data)

    def test_a_name_that_is_no_dataclass_is_refused(self) -> None:
        for name in ("os:system", "builtins:dict", "tests.codecs.shapes:field"):
            with pytest.raises(CodecError, match="is not a dataclass"):
                codec.decode(_of_a_class(name))

    def test_a_class_that_workers_can_import_need_not_be_registered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = codec.encode(Point(1))
        monkeypatch.delitem(module.registry, "tests.codecs.shapes:Point", raising=False)
        assert codec.decode(data) == Point(1)


def _of_a_class(name: str) -> bytes:
    """The bytes of a dataclass that this process need not know."""
    import msgpack

    return msgpack.packb(msgpack.ExtType(1, msgpack.packb([name, {"x": 1}])))  # type: ignore[no-any-return]


class TestRegistering:
    def test_a_local_class_that_is_registered_comes_back(self) -> None:
        @mw.register
        @dataclass
        class Local:
            x: int

        assert back([Local(1), Local(2)]) == [Local(1), Local(2)]

    def test_register_gives_the_class_back(self) -> None:
        assert mw.register(Point) is Point

    @pytest.mark.parametrize("thing", [dict, 3, "Point", Point(1), lambda: None])
    def test_what_is_no_dataclass_is_refused_with_the_cure(self, thing: Any) -> None:
        with pytest.raises(CodecError, match=r"takes a dataclass, not .*decorate it with @dataclass"):
            mw.register(thing)

    def test_a_class_that_is_defined_again_replaces_the_former_one(self) -> None:
        def define() -> type:
            @mw.register
            @dataclass
            class Again:
                x: int

            return Again

        first, second = define(), define()
        assert type(back(second(1))) is second
        assert first is not second

    def test_the_state_of_a_computation_is_registered_with_its_fields(self) -> None:
        @dataclass
        class Inner:
            n: int = 0

        @dataclass
        class State:
            inner: Inner = dataclasses.field(default_factory=Inner)

        class Counting(mw.Computation):
            def initial_state(self) -> State:
                return State()

            def process_record(self, record: mw.Record) -> None:
                self.state.inner.n += 1

        p = mw.Pipeline("p")
        p.inject("in", mw.injectors.Records([]))
        p.add(Counting(), inputs={"in": mw.by_key})
        h = mw.testing.Harness(p)
        for time in range(3):
            h.send("in", None, timestamp=time, key="k")
            h.crash()
        assert h.state("Counting", "k") == State(Inner(3))


def test_a_dataclass_is_a_record_s_value_and_each_consumer_has_its_own() -> None:
    class Grow(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            record.value.corners.append(Point(len(record.value.corners)))
            self.produce("out", [record.value, Label(self.key)])

    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Records([]))
    p.add(Grow(), name="A", inputs={"in": mw.by("name")}, outputs=["out"])
    p.add(Grow(), name="B", inputs={"in": mw.by("name")}, outputs=["out"])
    h = mw.testing.Harness(p)
    h.send("in", Shape("s", [Point(7)]), timestamp=0)
    expected = [Shape("s", [Point(7), Point(1)]), Label("s")]
    assert [record.value for record in h.output("out")] == [expected, expected]
