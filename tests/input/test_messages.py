"""Messages become records, each its own, however their JSON is laid out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import millwheel as mw
from millwheel.injectors.messages import Converter
from millwheel.model.injector import Offset, RecordBatch
from tests.computations import Echo
from tests.input.conftest import Run


class FakeMessage:
    """A message as the client gives it."""

    def __init__(self, value: bytes, offset: int) -> None:
        self._value = value
        self._offset = offset

    def value(self) -> bytes:
        return self._value

    def key(self) -> bytes:
        return b"key %d" % self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._offset

    def offset(self) -> int:
        return self._offset


class Topic(mw.Injector):
    """The messages of one partition, made into records as those of Kafka are."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self._values = list(values)

    def poll(self) -> Mapping[str, Offset]:
        return {"t/0": len(self._values)}

    def low_watermark(self, partition: str, offset: Offset) -> int:
        return mw.MAX_TIME if offset == len(self._values) else mw.MIN_TIME

    def read_batches(self, partition: str, start: Offset, end: Offset) -> Iterable[RecordBatch]:
        numbers = range(start or 0, end)
        yield Converter("json", None, "us", None)([FakeMessage(self._values[n], n) for n in numbers])


VALUES: list[Any] = [{"n": 0}, {"a": [1, {"b": "x\ny"}]}, [1, 2], "text\n", 5, None, {}, {"n": 7}]


def _run(values: list[bytes], run: Run) -> dict[str, Any]:
    p = mw.Pipeline("messages")
    p.inject("in", Topic(values))
    p.add(Echo(), name="C", inputs={"in": mw.by_key}, outputs=["out"])
    sink = mw.sinks.Collect()
    p.sink("out", sink)
    run(p)
    return {record.key: record.value for record in sink.records}


def test_json_with_newlines_in_it_and_behind_it_stays_with_its_message(run: Run) -> None:
    layouts = [
        lambda value: json.dumps(value, indent=2).encode(),
        lambda value: json.dumps(value).encode() + b"\n",
        lambda value: b"\r\n" + json.dumps(value, indent=1).encode() + b"\r\n\n",
        lambda value: json.dumps(value).encode(),
    ]
    sent = [(layout(value), value) for layout in layouts for value in VALUES]
    found = _run([text for text, _ in sent], run)
    assert found == {f"key {number}": value for number, (_, value) in enumerate(sent)}
