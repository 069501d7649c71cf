"""A key's row: its state, its timers and its holds, as one value (7.1)."""

from __future__ import annotations

from typing import NamedTuple

from millwheel.model.codec import pack, unpack

Times = dict[str, int]
"""By tag: a time."""


class Row(NamedTuple):
    """A row as it is read; ``state`` is None where the key has timers or holds only.

    A tag has one timer, of one clock: it is in ``timers`` (the watermark's) or in ``wall``.
    """

    state: bytes | None
    timers: Times
    wall: Times
    holds: Times
    key: str | None
    version: int = 1
    """Of the computation that wrote the state."""


_PLAIN = b"\x00"
_FULL = b"\x01"
_VERSIONED = 2  # then the version, and the row as it is without one


def encode_row(
    state: bytes | None, timers: Times, wall: Times, holds: Times, long_key: str | None, version: int = 1
) -> bytes:
    """The bytes of a row; most rows of a steady pipeline are a state and one byte."""
    if version != 1:
        return (
            bytes((_VERSIONED,))
            + version.to_bytes(2, "big")
            + encode_row(state, timers, wall, holds, long_key)
        )
    if wall or holds or long_key is not None:
        return _FULL + pack((state, timers, wall, holds, long_key))
    if timers or state is None:
        return _FULL + pack((state, timers))
    return _PLAIN + state


def decode_row(data: bytes) -> Row:
    """The inverse of `encode_row`."""
    if data[0] == 0:
        return Row(data[1:], {}, {}, {}, None)
    if data[0] == _VERSIONED:
        return decode_row(data[3:])._replace(version=int.from_bytes(data[1:3], "big"))
    parts = unpack(data[1:])
    if len(parts) == 2:
        return Row(parts[0], parts[1], {}, {}, None)
    return Row(*parts)
