"""The values that a window emits, as bytes: JSON that a sink may write as it is, or MessagePack."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from millwheel.model.codec import pack, pack_each
from millwheel.model.folding import Folding

_json = msgspec.json.Encoder().encode


def json_values(
    folding: Folding, start: int, keys: list[str], results: list[list[Any]]
) -> list[bytes] | None:
    """A window's values as lines of JSON, for sinks to write as they are; None where one would change."""
    for column in results:
        kinds = set(map(type, column))
        numbers = [number for number in column if number is not None] if type(None) in kinds else column
        if not kinds <= {int, float, type(None)} or (kinds & {int, float} and not _carried(numbers)):
            return None
    middle = b',"start":%d,"end":%d' % (start, start + folding.size)
    try:
        parts = [[b'{"key":' + text + middle for text in map(_json, keys)]]
        for folded, column in zip(folding.folds, results, strict=True):
            label = b"," + _json(folded.name) + b":"
            parts.append([label + text for text in map(_json, column)])
    except UnicodeEncodeError:  # half a character
        return None
    parts.append([b"}"] * len(keys))
    return list(map(b"".join, zip(*parts, strict=True)))


def _carried(numbers: list[Any]) -> bool:
    """Whether numbers come back from JSON as they were."""
    if not math.isfinite(sum(numbers)):
        return False
    return bool(min(numbers) >= -(2**63) and max(numbers) < 2**63)


def packed_values(folding: Folding, start: int, keys: list[str], results: list[list[Any]]) -> list[bytes]:
    """The values of a window's records, as MessagePack: all but the key and the numbers is there once."""
    names, end = [folded.name for folded in folding.folds], start + folding.size
    if len(names) > 11:  # more than one byte says how many entries
        return [
            pack(
                {
                    "key": key,
                    "start": start,
                    "end": end,
                    **dict(zip(names, row, strict=True)),
                }
            )
            for key, *row in zip(keys, *results, strict=True)
        ]
    head = bytes((0x83 + len(names),)) + pack("key")
    middle = pack("start") + pack(start) + pack("end") + pack(end)
    parts = [[head + one + middle for one in pack_each(keys)]]
    for name, column in zip(names, results, strict=True):
        label = pack(name)
        small = {number: label + pack(number) for number in set(column)} if _repeats(column) else None
        if small is not None:
            parts.append(list(map(small.__getitem__, column)))
        else:
            parts.append([label + one for one in pack_each(column)])
    return list(map(b"".join, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]


def _repeats(column: list[Any]) -> bool:
    """Whether a column is of integers that mostly come again: 1 and True would be one otherwise."""
    return set(map(type, column)) == {int} and len(set(column)) * 2 <= len(column)
