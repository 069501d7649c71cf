"""A codec for small states: a dataclass's fields, without their names."""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import msgpack

from millwheel.model.codec import Codec


class Packed(Codec):
    """A dataclass as a MessagePack array of its fields; arrays of floats as bytes.

    A field that is a dataclass itself, or None, is marked: ``field(metadata={"packed": Class})``. Fields that
    were added at the end, with a default, are not in old bytes and get it.
    """

    def __init__(self, cls: type) -> None:
        self._cls = cls
        fields = dataclasses.fields(cls)
        self._names = [field.name for field in fields]
        self._arrays = [n for n, field in enumerate(fields) if str(field.type).startswith("array")]
        self._nested = [
            (n, Packed(field.metadata["packed"])) for n, field in enumerate(fields) if field.metadata
        ]

    def encode(self, value: Any) -> bytes:
        data: bytes = msgpack.packb(self._fields(value))
        return data

    def decode(self, data: bytes) -> Any:
        return self._build(msgpack.unpackb(data, strict_map_key=False))

    def _fields(self, value: Any) -> list[Any]:
        fields = [getattr(value, name) for name in self._names]
        for number in self._arrays:
            fields[number] = fields[number].tobytes()
        for number, nested in self._nested:
            if fields[number] is not None:
                fields[number] = nested._fields(fields[number])
        return fields

    def _build(self, fields: list[Any]) -> Any:
        for number in self._arrays:
            if number < len(fields):
                fields[number] = array("f", fields[number])
        for number, nested in self._nested:
            if number < len(fields) and fields[number] is not None:
                fields[number] = nested._build(fields[number])
        return self._cls(*fields)
