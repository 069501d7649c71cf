"""A key's row: its state, its timers and its holds, as one value (7.1)."""

from __future__ import annotations

from typing import NamedTuple

from millwheel.model.codec import pack, unpack

Timers = dict[str, tuple[int, int]]
"""By tag: the time, and the kind of clock (`KIND_WATERMARK` or `KIND_WALL`)."""
Holds = dict[str, int]


class Row(NamedTuple):
    """A row as it is read; ``state`` is None where the key has timers or holds only."""

    state: bytes | None
    timers: Timers
    holds: Holds
    key: str | None


_PLAIN = b"\x00"
_FULL = b"\x01"


def encode_row(state: bytes | None, timers: Timers, holds: Holds, long_key: str | None) -> bytes:
    """The bytes of a row; most rows of a steady pipeline are a state and one byte."""
    if state is not None and not timers and not holds and long_key is None:
        return _PLAIN + state
    flat: list[str | int] = []
    for tag, (time, kind) in timers.items():
        flat += (tag, time, kind)
    head = pack([state is not None, long_key, flat, holds])
    return b"".join((_FULL, len(head).to_bytes(4, "big"), head, state or b""))


def decode_row(data: bytes) -> Row:
    """The inverse of `encode_row`."""
    if data[0] == 0:
        return Row(data[1:], {}, {}, None)
    end = 5 + int.from_bytes(data[1:5], "big")
    has_state, long_key, flat, holds = unpack(data[5:end])
    timers = {flat[i]: (flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)}
    return Row(data[end:] if has_state else None, timers, holds, long_key)
