"""A key's row: its state, its timers and its holds, as one value (7.1)."""

from __future__ import annotations

from typing import NamedTuple

from millwheel.model.codec import pack_plain, unpack

Times = dict[str, int]
"""By tag: a time."""


class Row(NamedTuple):
    """A decoded row; ``state`` is None if the key has only timers or holds.

    A tag has one timer, of one clock: it is in ``timers`` (the watermark's) or in ``wall``.
    """

    state: bytes | None
    timers: Times
    wall: Times
    holds: Times
    key: str | None
    version: int = 1
    """The version of the computation that wrote the state."""


_PLAIN = b"\x00"
_FULL = b"\x01"
_VERSIONED = 2  # followed by the version and the row without one


def encode_row(
    state: bytes | None, timers: Times, wall: Times, holds: Times, long_key: str | None, version: int = 1
) -> bytes:
    """Encodes a row; most rows of a steady pipeline are a state and one byte."""
    if version != 1:
        return with_version(encode_row(state, timers, wall, holds, long_key), version)
    if wall or holds or long_key is not None:
        return _FULL + pack_plain((state, timers, wall, holds, long_key))
    if timers or state is None:
        return _FULL + pack_plain((state, timers))
    return _PLAIN + state


def with_version(row: bytes, version: int) -> bytes:
    """A row's bytes with the version of its state; version 1 is not stored."""
    return row if version == 1 else bytes((_VERSIONED,)) + version.to_bytes(2, "big") + row


def row_version(row: bytes | None) -> int:
    """The version of the computation that wrote a row's state."""
    return int.from_bytes(row[1:3], "big") if row is not None and row[0] == _VERSIONED else 1


def row_parts(data: bytes | None) -> tuple[bytes | None, Times, Times, Times, str | None]:
    """The inverse of `encode_row` as a tuple; empty fields without a row."""
    if data is None:
        return None, {}, {}, {}, None
    if data[0] == 0:
        return data[1:], {}, {}, {}, None
    if data[0] == _VERSIONED:
        return row_parts(data[3:])
    parts = unpack(data[1:])
    if len(parts) == 2:
        return parts[0], parts[1], {}, {}, None
    state, timers, wall, holds, long_key = parts
    return state, timers, wall, holds, long_key


def decode_row(data: bytes) -> Row:
    """The inverse of `encode_row`."""
    return Row(*row_parts(data), row_version(data))
