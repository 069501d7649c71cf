"""JSON, raw bytes, pickle, Protocol Buffers, and a codec of one's own, each as the codec of a state."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.errors import CodecError


def _message(name: str) -> Any:
    """A message class made at run time: ``Tally {int64 count = 1; repeated string seen = 2; map counts}``."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="tests", syntax="proto3")
    message = file.message_type.add(name=name)
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="count", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    message.field.add(name="seen", number=2, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    message.field.add(
        name="counts",
        number=3,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_REPEATED,
        type_name=f".tests.{name}.CountsEntry",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tests.{name}"))


Tally = _message("Tally")

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet=st.characters(), max_size=5), inner, max_size=4)
    ),
    max_leaves=15,
)


class TestJson:
    @given(_json)
    def test_every_json_value_comes_back(self, value: Any) -> None:
        assert mw.codecs.json.decode(mw.codecs.json.encode(value)) == value

    def test_the_bytes_are_json_that_anything_reads(self) -> None:
        assert json.loads(mw.codecs.json.encode({"a": [1, "é", None]})) == {"a": [1, "é", None]}

    def test_infinities_come_back(self) -> None:
        assert mw.codecs.json.decode(mw.codecs.json.encode([float("inf")])) == [float("inf")]

    def test_an_integer_key_becomes_text(self) -> None:
        assert mw.codecs.json.decode(mw.codecs.json.encode({1: 2})) == {"1": 2}

    def test_bytes_are_refused(self) -> None:
        with pytest.raises(TypeError):
            mw.codecs.json.encode({"a": b"bytes"})


class TestRaw:
    @given(st.binary())
    def test_bytes_stay_as_they_are(self, value: bytes) -> None:
        assert mw.codecs.raw.encode(value) == value
        assert mw.codecs.raw.decode(value) == value

    def test_a_bytearray_and_a_memoryview_are_bytes(self) -> None:
        assert mw.codecs.raw.encode(bytearray(b"ab")) == b"ab"
        assert mw.codecs.raw.encode(memoryview(b"ab")) == b"ab"

    @pytest.mark.parametrize("value", ["text", 3, None, {}, [1]], ids=repr)
    def test_anything_else_is_refused(self, value: Any) -> None:
        with pytest.raises(TypeError, match="the raw codec takes bytes, not"):
            mw.codecs.raw.encode(value)


class TestPickle:
    @pytest.mark.parametrize("value", [{1, 2}, (1, (2,)), 1 + 2j, 2**100, range(3), {(1,): {2}}], ids=repr)
    def test_what_python_has_comes_back_with_its_type(self, value: Any) -> None:
        result = mw.codecs.pickle.decode(mw.codecs.pickle.encode(value))
        assert result == value
        assert type(result) is type(value)


class TestProtobuf:
    def test_a_message_comes_back(self) -> None:
        codec = mw.codecs.protobuf(Tally)
        message = Tally(count=7, seen=["a", "b"], counts={"x": 1, "y": 2})
        assert codec.decode(codec.encode(message)) == message

    @given(
        st.integers(-(2**63), 2**63 - 1),
        st.lists(st.text(max_size=5), max_size=5),
        st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=5),
    )
    def test_every_message_comes_back(self, count: int, seen: list[str], counts: dict[str, int]) -> None:
        codec = mw.codecs.protobuf(Tally)
        message = Tally(count=count, seen=seen, counts=counts)
        assert codec.decode(codec.encode(message)) == message

    def test_equal_messages_have_equal_bytes_whatever_the_order_of_their_maps(self) -> None:
        codec = mw.codecs.protobuf(Tally)
        names = [f"name {i}" for i in range(50)]
        one = Tally(counts={name: 1 for name in names})
        other = Tally(counts={name: 1 for name in reversed(names)})
        assert codec.encode(one) == codec.encode(other)

    def test_a_message_of_another_class_is_refused(self) -> None:
        with pytest.raises(TypeError, match="expected a Tally, not Int64Value"):
            mw.codecs.protobuf(Tally).encode(wrappers_pb2.Int64Value(value=1))

    @pytest.mark.parametrize("thing", [dict, 3, "Tally", None], ids=repr)
    def test_what_is_no_message_class_is_refused(self, thing: Any) -> None:
        with pytest.raises(CodecError, match="takes a generated message class"):
            mw.codecs.protobuf(thing)

    def test_the_codec_of_a_generated_class_pickles(self) -> None:
        codec = pickle.loads(pickle.dumps(mw.codecs.protobuf(struct_pb2.Struct)))
        message = struct_pb2.Struct()
        message["a"] = 1.5
        assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize("name", ["msgpack", "json", "raw", "pickle"])
def test_a_codec_stays_itself_when_it_is_shipped(name: str) -> None:
    codec = getattr(mw.codecs, name)
    assert pickle.loads(pickle.dumps(codec)) is codec
    assert copy.deepcopy(codec) is codec


class Base64:
    """A codec of a user's own: no class of ours, two methods."""

    def encode(self, value: Any) -> bytes:
        return base64.b64encode(repr(value).encode())

    def decode(self, data: bytes) -> Any:
        return eval(base64.b64decode(data))


STATES: list[tuple[Any, Any, Any]] = [
    # the codec, the initial state, and the state after three records
    (mw.codecs.msgpack, [], [0, 1, 2]),
    (mw.codecs.json, [], [0, 1, 2]),
    (mw.codecs.pickle, (), (0, 1, 2)),
    (mw.codecs.raw, b"", b"\x00\x01\x02"),
    (Base64(), (), (0, 1, 2)),
    (mw.codecs.protobuf(struct_pb2.ListValue), None, [0, 1, 2]),
    (mw.codecs.protobuf(Tally), None, ["0", "1", "2"]),
]


def _name(case: tuple[Any, Any, Any]) -> str:
    return type(case[0]).__name__


@pytest.mark.parametrize("case", STATES, ids=_name)
def test_a_state_lives_through_crashes_with_every_codec(case: tuple[Any, Any, Any]) -> None:
    codec, empty, expected = case

    class Append(mw.Computation):
        def initial_state(self) -> Any:
            if empty is not None:
                return copy.copy(empty)
            return Tally() if expected == ["0", "1", "2"] else struct_pb2.ListValue()

        def process_record(self, record: mw.Record) -> None:
            if isinstance(self.state, Tally):
                self.state.seen.append(str(record.value))
            elif isinstance(self.state, struct_pb2.ListValue):
                self.state.append(record.value)
            elif isinstance(self.state, bytes):
                self.state += bytes([record.value])
            elif isinstance(self.state, tuple):
                self.state = (*self.state, record.value)
            else:
                self.state.append(record.value)

    Append.codec = codec
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Records([]))
    p.add(Append(), inputs={"in": mw.by_key})
    h = mw.testing.Harness(p)
    for number in range(3):
        h.send("in", number, timestamp=number, key="k")
        h.crash()
    state = h.state("Append", "k")
    if isinstance(state, Tally):
        state = list(state.seen)
    elif isinstance(state, struct_pb2.ListValue):
        state = [int(value) for value in state]
    assert state == expected


def test_a_codec_without_both_methods_is_refused_when_the_pipeline_is_built() -> None:
    class OneWay:
        def encode(self, value: Any) -> bytes:
            return b""

    class Uses(mw.Computation):
        codec = OneWay()

    p = mw.Pipeline("p")
    with pytest.raises(mw.PipelineError, match=r"'Uses'.*has no decode\(\)"):
        p.add(Uses(), inputs={"in": mw.by_key})
