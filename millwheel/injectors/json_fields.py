"""Fields of JSON lines, read without decoding the rest of them.

Most of a line is read by a hook, in another task, or never. Routing a record needs its
timestamp, its ID and its consumers' key fields: a third of the time of decoding.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from millwheel.model.batch import RecordBatch

if TYPE_CHECKING:
    from millwheel.injectors.line_columns import LineColumns

# Integers of 64 bits: a longer one is a float for the decoder of the hooks' values.
_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Text = str | _Integer
_Any = _Integer | float | str | bool | None


def read(
    lines: list[bytes],
    timestamp: str,
    id: str | None,
    fields: Sequence[str],
    optional: frozenset[str] = frozenset(),
) -> RecordBatch | None:
    """The fields of lines; None if one of them must be parsed alone.

    That is a line that is not JSON, or lacks a field, or has a timestamp that is not an integer, or
    another field that is neither a text nor an integer. ``optional`` fields may be missing, or anything
    but a list or an object.
    """
    names, decoder = _decoder(timestamp, id, tuple(fields), optional - {timestamp, id})
    try:
        rows = list(map(decoder.decode, lines))
    except (msgspec.MsgspecError, ValueError, RecursionError):  # the latter: not UTF-8, too deep
        return None
    columns = {name: list(map(attrgetter(attribute), rows)) for name, attribute in names.items()}
    ids = None if id is None else columns[id]
    wanted = {name: columns[name] for name in fields}
    return RecordBatch(columns[timestamp], [], ids, json=lines, fields=wanted)


def read_columns(
    text: bytes, timestamp: str, fields: Sequence[str], optional: frozenset[str] = frozenset()
) -> LineColumns | None:
    """The fields of a text of lines, as columns; None unless one object each."""
    from millwheel.injectors import line_columns  # with NumPy, which small epochs do without

    names, decoder = _decoder(timestamp, None, tuple(fields), optional - {timestamp})
    return line_columns.read(text, timestamp, fields, names, decoder.decode_lines)


@functools.lru_cache(maxsize=64)
def _decoder(
    timestamp: str, id: str | None, fields: tuple[str, ...], optional: frozenset[str | None]
) -> tuple[dict[str, str], msgspec.json.Decoder[Any]]:
    names = {name: f"f{number}" for number, name in enumerate(dict.fromkeys([timestamp, *fields]))}
    if id is not None:
        names.setdefault(id, "id_")
    kinds: list[Any] = [
        (attribute, _Integer if name == timestamp else _Text)
        for name, attribute in names.items()
        if name not in optional
    ]
    kinds += [(attribute, _Any, None) for name, attribute in names.items() if name in optional]
    rename = {attribute: name for name, attribute in names.items()}
    row = msgspec.defstruct("Row", kinds, rename=rename, gc=False)
    return names, msgspec.json.Decoder(row)
