"""What cannot be encoded or decoded is told with the computation, and the key or the stream."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.store.keyspace import row_prefix, row_suffix
from tests.computations import hooks, values


class Broken:
    """A codec that fails in the ways that it is told to."""

    def __init__(self, encode: Any = None, decode: Any = None) -> None:
        self._encode = encode or mw.codecs.msgpack.encode
        self._decode = decode or mw.codecs.msgpack.decode

    def __repr__(self) -> str:
        return "Broken()"

    def encode(self, value: Any) -> Any:
        return self._encode(value)

    def decode(self, data: bytes) -> Any:
        return self._decode(data)


def _fail(value: Any) -> Any:
    raise ZeroDivisionError("the codec is broken")


def _harness(codec: Any, **options: Any) -> mw.testing.Harness:
    class Keeps(mw.Computation):
        def process_record(self, record: mw.Record) -> None:
            self.state["v"] = record.value
            self.produce("out", record.value)

    Keeps.codec = codec
    p = mw.Pipeline("p")
    p.inject("in", mw.injectors.Records([]))
    p.add(Keeps(), inputs={"in": mw.by_key}, outputs=["out"], **options)
    return mw.testing.Harness(p)


def _state_of_a_complex(c: mw.Computation, record: mw.Record) -> None:
    c.state = {"a": 1j}


class TestAState:
    def test_one_that_cannot_be_encoded_names_the_computation_and_the_key(self) -> None:
        h = mw.testing.Harness(hooks(_state_of_a_complex))
        with pytest.raises(mw.UserCodeError) as caught:
            h.send("in", 1, timestamp=0, key="the key")
        message = str(caught.value)
        assert "computation 'C'" in message
        assert "key 'the key'" in message
        assert "cannot encode the state" in message
        assert "complex" in message
        assert (caught.value.computation, caught.value.key) == ("C", "the key")
        assert isinstance(caught.value.cause, mw.CodecError)

    def test_nothing_of_the_epoch_is_committed(self) -> None:
        h = _harness(Broken(encode=lambda value: _fail(value) if value["v"] == 2 else b"\x80"))
        h.send("in", 1, timestamp=0, key="k")

        def send_both() -> None:
            with h.epoch():
                h.send("in", 1, timestamp=0, key="other")
                h.send("in", 2, timestamp=0, key="k")

        with pytest.raises(mw.UserCodeError, match="the codec is broken"):
            send_both()
        assert values(h.output("out")) == [1]
        assert h.state("Keeps", "other") is None

    def test_a_codec_that_returns_no_bytes_names_the_computation_and_what_came(self) -> None:
        for result, name in (("text", "str"), (None, "NoneType"), (3, "int"), (bytearray(b"x"), "bytearray")):
            h = _harness(Broken(encode=lambda value, result=result: result))
            with pytest.raises(mw.UserCodeError) as caught:
                h.send("in", 1, timestamp=0, key="the key")
            assert "computation 'Keeps'" in str(caught.value)
            assert "Broken()" in str(caught.value)
            assert f"returned {name} for a state, not bytes" in str(caught.value)
            assert caught.value.key == "the key"

    def test_one_that_cannot_be_decoded_names_the_computation_and_the_key(self) -> None:
        h = _harness(Broken(decode=_fail))
        h.send("in", 1, timestamp=0, key="the key")
        with pytest.raises(mw.UserCodeError) as caught:
            h.send("in", 2, timestamp=0, key="the key")
        message = str(caught.value)
        assert "computation 'Keeps', key 'the key'" in message
        assert "cannot read the stored state (ZeroDivisionError: the codec is broken)" in message

    def test_bytes_that_another_codec_wrote_are_told(self) -> None:
        h = _harness(mw.codecs.json)
        h.send("in", 1, timestamp=0, key="k")
        row = row_prefix(h.driver.numbers["Keeps"]) + row_suffix("k")
        h.store.shards[0].write([(row, b"\x00not json")])
        with pytest.raises(
            mw.UserCodeError, match=r"computation 'Keeps', key 'k'.*cannot read the stored state"
        ):
            h.send("in", 2, timestamp=0, key="k")

    def test_with_divert_the_record_alone_goes_to_the_errors(self) -> None:
        h = _harness(
            Broken(
                encode=lambda value: _fail(value) if value.get("v") == 2 else mw.codecs.msgpack.encode(value)
            ),
            errors="divert",
        )
        with h.epoch():
            for number in (1, 2, 3):
                h.send("in", number, timestamp=number, key="k")
        assert h.state("Keeps", "k") == {"v": 3}
        assert values(h.output("out")) == [1, 3]
        (diverted,) = h.output("Keeps.errors")
        assert diverted.value["value"] == 2
        assert "the codec is broken" in diverted.value["error"]
        assert h.status().failed["Keeps"] == 1


@pytest.mark.parametrize("name", ["msgpack", "json", "raw", "pickle"])
def test_a_codec_of_ours_is_named_in_messages_by_its_public_name(name: str) -> None:
    assert name in repr(getattr(mw.codecs, name)).lower()
    assert " at 0x" not in repr(getattr(mw.codecs, name))


def _produce(value: Any) -> Any:
    def on_record(c: mw.Computation, record: mw.Record) -> None:
        c.produce("out", "good")
        c.produce("out", value)

    return on_record


class TestAProduction:
    @pytest.mark.parametrize("value", [{1, 2}, object(), 2**64, [[{"deep": 1j}]]])
    def test_one_that_cannot_be_encoded_names_the_computation_and_the_stream(self, value: Any) -> None:
        h = mw.testing.Harness(hooks(_produce(value)))
        with pytest.raises(mw.UserCodeError) as caught:
            h.send("in", 1, timestamp=0, key="the key")
        message = str(caught.value)
        assert "computation 'C', stream 'out': the value cannot be encoded" in message
        assert (caught.value.computation, caught.value.key) == ("C", "the key")
        assert h.output("out") == []

    def test_one_that_is_nested_too_deep_is_told_the_same_way(self) -> None:
        deep: list[Any] = []
        for _ in range(5_000):
            deep = [deep]
        h = mw.testing.Harness(hooks(_produce(deep)))
        with pytest.raises(
            mw.UserCodeError, match="computation 'C', stream 'out': the value cannot be encoded"
        ):
            h.send("in", 1, timestamp=0, key="k")

    def test_with_divert_what_it_produced_before_is_undone(self) -> None:
        h = mw.testing.Harness(hooks(_produce({1}), errors="divert"))
        h.send("in", 1, timestamp=0, key="k")
        assert h.output("out") == []
        (diverted,) = h.output("C.errors")
        assert diverted.value["value"] == 1
        assert "cannot be encoded in MessagePack" in diverted.value["error"]

    def test_the_next_production_is_not_harmed_by_one_that_failed(self) -> None:
        def on_record(c: mw.Computation, record: mw.Record) -> None:
            c.produce("out", ["before", record.value])
            try:
                c.produce("out", ["half", {1}])
            except mw.CodecError:
                c.produce("out", ["behind", record.value])

        h = mw.testing.Harness(hooks(on_record))
        h.send("in", 1, timestamp=0, key="k")
        assert values(h.output("out")) == [["before", 1], ["behind", 1]]
