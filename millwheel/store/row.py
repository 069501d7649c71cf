"""A key's row: its state, its timers and its holds, as one value (7.1)."""

from __future__ import annotations

from typing import NamedTuple

from millwheel.model.codec import pack_plain, unpack

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


_PLAIN = b"\x00"
_FULL = b"\x01"


def encode_row(state: bytes | None, timers: Times, wall: Times, holds: Times, long_key: str | None) -> bytes:
    """The bytes of a row; most rows of a steady pipeline are a state and one byte."""
    if wall or holds or long_key is not None:
        return _FULL + pack_plain((state, timers, wall, holds, long_key))
    if timers or state is None:
        return _FULL + pack_plain((state, timers))
    return _PLAIN + state


def row_parts(data: bytes | None) -> tuple[bytes | None, Times, Times, Times, str | None]:
    """The inverse of `encode_row`: what a `Row` has, without one; of no row, nothing."""
    if data is None:
        return None, {}, {}, {}, None
    if data[0] == 0:
        return data[1:], {}, {}, {}, None
    parts = unpack(data[1:])
    if len(parts) == 2:
        return parts[0], parts[1], {}, {}, None
    state, timers, wall, holds, long_key = parts
    return state, timers, wall, holds, long_key


def decode_row(data: bytes) -> Row:
    """The inverse of `encode_row`."""
    return Row(*row_parts(data))
