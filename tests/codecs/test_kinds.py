"""A state's types are after an epoch what they were before it, or are refused when they are first written."""

from __future__ import annotations

import datetime
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.codec import pack, registered
from millwheel.model.extension_types import ENUM
from tests.computations import Hooks, single
from tests.conftest import MakeHarness


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Text(str, enum.Enum):
    A = "a"


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Point(NamedTuple):
    x: int
    y: Any


@dataclass(frozen=True)
class Kept:
    pair: tuple[int, Any]
    seen: frozenset[str] = field(default_factory=frozenset)


UTC = datetime.timezone.utc
PLAIN: list[Any] = [
    {},
    {"a": [1, 2.5, "x", b"y", None, True]},
    [],
    "text",
    7,
    -(2**63),
    1.5,
    True,
    b"bytes",
    None,
]
HASHABLE: list[Any] = [
    (),
    (1, ("nested", None)),
    frozenset({"a", (1, 2)}),
    datetime.datetime(2026, 11, 16, 12, 0, 0, 5),
    datetime.datetime(2026, 11, 16, 12, tzinfo=UTC),
    datetime.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-5, minutes=-30))),
    datetime.date(2026, 11, 16),
    datetime.time(12, 30, 1, 7),
    datetime.timedelta(days=-1, microseconds=3),
    Decimal("1.10"),
    Decimal("-0E-10"),
    Colour.RED,
    Colour.BLUE,
    Level.LOW,
    Text.A,
    Rights.READ | Rights.WRITE,
    Point(1, (2,)),
    Kept((1, Colour.RED), frozenset("ab")),
]
OTHERS: list[Any] = [
    set(),
    {"a", 1, (2, 3)},
    Counter({"a": 2, ("b", 1): 3}),
    defaultdict(list, {"a": [1]}),
    defaultdict(int, {(1, 2): 3}),
    defaultdict(None, {"a": 1}),
    defaultdict(Counter, {"a": Counter("aab")}),
    deque([1, (2,)], maxlen=3),
    deque(),
    OrderedDict([("b", 1), ("a", 2)]),
]


def same(found: Any, expected: Any) -> None:
    """Equal, and of the same types all the way down."""
    assert type(found) is type(expected)
    assert repr(found) == repr(expected) if isinstance(expected, Decimal) else found == expected
    if isinstance(expected, dict):
        for (key, value), (other_key, other) in zip(found.items(), expected.items(), strict=True):
            same(key, other_key)
            same(value, other)
    elif isinstance(expected, list | tuple | deque):
        for value, other in zip(found, expected, strict=True):
            same(value, other)
    if isinstance(expected, defaultdict):
        assert found.default_factory is expected.default_factory
    if isinstance(expected, deque):
        assert found.maxlen == expected.maxlen
    if isinstance(expected, datetime.datetime):
        assert (found.fold, str(found.tzinfo)) == (expected.fold, str(expected.tzinfo))


@pytest.mark.parametrize("value", [*PLAIN, *HASHABLE, *OTHERS], ids=lambda value: type(value).__name__)
def test_a_state_comes_back_as_what_it_was(value: Any, harness: MakeHarness) -> None:
    found: list[Any] = []
    nested = {"list": [value, value], "dict": {"a": {"b": value}}, "tuple": (value,)}

    def hook(self: Hooks, record: mw.Record) -> None:
        if record.value == "write":
            self.state = [value, nested]
        else:
            found.append(self.state)

    h = harness(single(Hooks(hook)))
    h.send("in", "write", timestamp=1)
    h.send("in", "read", timestamp=2)
    h.crash()
    h.send("in", "read", timestamp=3)
    for state in (*found, h.state("C", "")):
        same(state, [value, nested])


@pytest.mark.parametrize("key", HASHABLE, ids=lambda value: type(value).__name__)
def test_a_key_of_a_dict_comes_back_as_what_it_was(key: Any) -> None:
    state = {key: [key], "other": {key: 1}}
    same(mw.codecs.msgpack.decode(mw.codecs.msgpack.encode(state)), state)


def test_equal_sets_are_equal_bytes() -> None:
    names = [f"name {number}" for number in range(50)]
    one, other = set(names), set(reversed(names))
    assert mw.codecs.msgpack.encode(one) == mw.codecs.msgpack.encode(other)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.dates()
    | st.sampled_from(list(Colour)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(
            st.text(max_size=2) | st.tuples(st.integers(0, 3), st.text(max_size=2)), inner, max_size=3
        )
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict)
        | st.frozensets(st.text(max_size=2), max_size=3)
    ),
    max_leaves=12,
)


@given(values)
def test_any_mixture_comes_back_as_what_it_was(value: Any) -> None:
    same(mw.codecs.msgpack.decode(mw.codecs.msgpack.encode(value)), value)


class MyDict(dict[str, int]):
    pass


class MyText(str):
    pass


class MySet(set[int]):
    pass


class Zone(datetime.tzinfo):
    def utcoffset(self, moment: Any) -> datetime.timedelta:
        return datetime.timedelta(0)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (MyDict(a=1), r"a MyDict would come back as a dict .* keep dict\(value\) in the state"),
        (MyText("a"), "a MyText would come back as a str"),
        (MySet(), "a MySet would come back as a set"),
        (defaultdict(lambda: 7), "a defaultdict of .* setdefault"),
        (datetime.datetime(2026, 1, 1, tzinfo=Zone()), "the time zone .* cannot be written"),
        (object(), r"a object cannot be encoded in MessagePack: use .*codecs\.pickle"),
        (2**64, "more than 64 bits"),
    ],
)
def test_what_would_come_back_as_another_type_is_refused_when_it_is_first_written(
    value: Any, why: str, harness: MakeHarness
) -> None:
    def hook(self: Hooks, record: mw.Record) -> None:
        self.state = {"deep": [value]}

    h = harness(single(Hooks(hook)))
    with pytest.raises(mw.MillWheelError, match=f"computation 'C', key 'k'.*{why}"):
        h.send("in", 1, timestamp=1, key="k")


def test_numpy_s_numbers_are_refused_with_what_to_do() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"a float64 would come back as a float .* float\(value\)"):
        mw.codecs.msgpack.encode({"mean": numpy.float64(1.5)})


def test_a_class_of_another_kind_is_neither_read_nor_known() -> None:
    data = msgpack.packb(msgpack.ExtType(ENUM, pack(["builtins:dict", "a", None])))
    with pytest.raises(mw.CodecError, match="builtins:dict is not a dataclass"):
        mw.codecs.msgpack.decode(data)
    assert "builtins:dict" not in registered()


def test_a_state_that_an_earlier_version_wrote_is_read() -> None:
    assert mw.codecs.msgpack.decode(pack({(1, "a"): (1, 2)})) == {(1, "a"): [1, 2]}


def test_a_value_of_a_record_is_what_messagepack_carries(harness: MakeHarness) -> None:
    def hook(self: Hooks, record: mw.Record) -> None:
        self.produce("out", {"pair": (1, 2), "counts": Counter("aab")})

    h = harness(single(Hooks(hook)))
    h.send("in", 1, timestamp=1)
    assert [record.value for record in h.output("out")] == [{"pair": [1, 2], "counts": {"a": 2, "b": 1}}]
