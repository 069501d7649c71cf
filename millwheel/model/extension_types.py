"""Types in a state that MessagePack lacks, and that keep their type.

Each is an extension type of MessagePack. What would change its type, a subclass of a dict or a
NumPy number, is refused when it is first written: it would change after the first epoch.
"""

from __future__ import annotations

import datetime
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes | memoryview], Any]
Find = Callable[[str], type]
"""Finds a class by the name under which it was written."""

TUPLE, SET, FROZENSET, DATETIME, DATE, TIME, TIMEDELTA = 2, 3, 4, 5, 6, 7, 8
DECIMAL, ENUM, COUNTER, DEFAULTDICT, DEQUE, ORDERED, NAMED = 9, 10, 11, 12, 13, 14, 15

_FACTORIES: Final[dict[str, Callable[[], Any]]] = {
    kind.__name__: kind
    for kind in (int, float, str, bool, bytes, list, dict, set, tuple, frozenset, Counter, deque, OrderedDict)
}
"""The factories of defaultdicts, which are written by name."""


def pack_kind(value: Any, pack: Pack, name: Callable[[type], str]) -> tuple[int, bytes] | None:
    """The extension type and the bytes of a value; None for an unknown kind."""
    kind = type(value)
    packed = _PACK.get(kind)
    if packed is not None:
        code, parts = packed
        return code, pack(parts(value))
    if kind in (set, frozenset):  # sorted, so that equal sets are equal bytes
        code = SET if kind is set else FROZENSET
        return code, pack(sorted(map(pack, value)))
    if isinstance(value, enum.Enum):
        known = value.name in kind.__members__
        return ENUM, pack([name(kind), value.name if known else None, None if known else value.value])
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return NAMED, pack([name(kind), list(value)])
    return None


def unpack_kind(code: int, data: bytes | memoryview, unpack: Unpack, find: Find) -> Any:
    """The inverse of `pack_kind`."""
    parts = unpack(data)
    if code == ENUM:
        name, member, value = parts
        cls: Any = find(name)
        return cls[member] if member is not None else cls(value)
    if code == NAMED:
        cls = find(parts[0])
        return cls._make(parts[1])
    return _UNPACK[code](parts) if code not in (SET, FROZENSET) else _set(code, parts, unpack)


def is_kind(code: int) -> bool:
    """Whether an extension type is one of these."""
    return TUPLE <= code <= NAMED


def why_not(value: Any) -> str:
    """Why a value is refused, and the fix."""
    kind = type(value)
    for base in (bool, int, float, str, bytes, list, dict, tuple, set):
        if isinstance(value, base):
            return (
                f"a {kind.__name__} would come back as a {base.__name__} after the epoch: keep "
                f"{base.__name__}(value) in the state, or a dataclass, or give the computation a codec such "
                "as millwheel.codecs.pickle"
            )
    return (
        f"a {kind.__name__} cannot be encoded in MessagePack: use None, bool, int, float, str, bytes, list, "
        "dict, tuple, set, frozenset, datetime, Decimal, Enum, Counter, defaultdict, deque or a dataclass, "
        "or give the computation a codec such as millwheel.codecs.pickle"
    )


def _zone(zone: datetime.tzinfo | None) -> Any:
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return zone.key
    if type(zone) is datetime.timezone:
        return zone.utcoffset(None) // _MICROSECOND
    raise TypeError(
        f"the time zone {zone!r} cannot be written: use zoneinfo.ZoneInfo or datetime.timezone, or a codec "
        "such as millwheel.codecs.pickle"
    )


_MICROSECOND = datetime.timedelta(microseconds=1)


def _zone_of(written: Any) -> datetime.tzinfo | None:
    if written is None or isinstance(written, str):
        return None if written is None else ZoneInfo(written)
    return datetime.timezone(written * _MICROSECOND)


def _datetime(value: datetime.datetime) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone(value.tzinfo)]


def _time(value: datetime.time) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _zone(value.tzinfo)]


def _defaultdict(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = getattr(factory, "__name__", None)
    if factory is not None and _FACTORIES.get(str(name)) is not factory:
        raise TypeError(
            f"a defaultdict of {factory!r} cannot be written: one of {', '.join(_FACTORIES)} can, or use a "
            "dict with setdefault(), or a codec such as millwheel.codecs.pickle"
        )
    return [None if factory is None else name, dict(value)]


def _set(code: int, parts: list[bytes], unpack: Unpack) -> Any:
    return (set if code == SET else frozenset)(map(unpack, parts))


_PACK: Final[dict[type, tuple[int, Callable[[Any], Any]]]] = {
    tuple: (TUPLE, list),
    datetime.datetime: (DATETIME, _datetime),
    datetime.date: (DATE, datetime.date.isoformat),
    datetime.time: (TIME, _time),
    datetime.timedelta: (TIMEDELTA, lambda value: value // _MICROSECOND),
    Decimal: (DECIMAL, str),
    Counter: (COUNTER, dict),
    defaultdict: (DEFAULTDICT, _defaultdict),
    deque: (DEQUE, lambda value: [value.maxlen, list(value)]),
    OrderedDict: (ORDERED, dict),
}

_UNPACK: Final[dict[int, Callable[[Any], Any]]] = {
    TUPLE: tuple,
    DATETIME: lambda parts: datetime.datetime.fromisoformat(parts[0]).replace(
        fold=parts[1], tzinfo=_zone_of(parts[2])
    ),
    DATE: datetime.date.fromisoformat,
    TIME: lambda parts: datetime.time.fromisoformat(parts[0]).replace(
        fold=parts[1], tzinfo=_zone_of(parts[2])
    ),
    TIMEDELTA: lambda parts: datetime.timedelta(microseconds=parts),
    DECIMAL: Decimal,
    COUNTER: Counter,
    DEFAULTDICT: lambda parts: defaultdict(_FACTORIES[parts[0]] if parts[0] else None, parts[1]),
    DEQUE: lambda parts: deque(parts[1], parts[0]),
    ORDERED: OrderedDict,
}
