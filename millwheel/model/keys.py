"""Keys: extractors of consumers (4.2), and fingerprints, which locate a key.

A key's fingerprint is a stable 64-bit hash of its text, so intervals of fingerprints split evenly
for any keys, and every process agrees on them (``hash()`` of a ``str`` differs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import xxhash

from millwheel.errors import PipelineError, shorten
from millwheel.model.record import Record

TABLETS: Final = 64
"""The number of equal tablets of a store's key space, if it was made with no other.

An interval is a run of tablets. 64 let 64 slots work in parallel, and keep the seeks for an interval's next
timer, one per tablet, far below a millisecond.
"""
MOST_TABLETS: Final = 4_096
PARTS: Final = 64
"""The parts of the key space that a step works on one after the other; each is a run of tablets."""

_digest = xxhash.xxh3_64_digest


def is_tablets(number: object) -> bool:
    """Whether a number of tablets is valid: a power of two from 64 to 4,096."""
    return isinstance(number, int) and TABLETS <= number <= MOST_TABLETS and not number & (number - 1)


class _Skip:
    """The type of `SKIP`; a singleton, also after pickling."""

    def __repr__(self) -> str:
        return "millwheel.SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP: Final = _Skip()
"""The result of an extractor for a record that is not for this consumer."""

KeyExtractor = Callable[[Record], Any]


class By:
    """Takes fields of the value as the key: the text of one, or several, escaped."""

    __slots__ = ("fields",)

    def __init__(self, *fields: str) -> None:
        self.fields = fields

    def __repr__(self) -> str:
        return f"by({', '.join(map(repr, self.fields))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, By) and other.fields == self.fields

    def __hash__(self) -> int:
        return hash((By, self.fields))

    def __call__(self, record: Record) -> Any:
        if len(self.fields) == 1:
            key = _field(record.value, self.fields[0])
            return str(key) if type(key) is int else key
        texts = [_text(field, _field(record.value, field)) for field in self.fields]
        return joined(texts)

    @property
    def plain(self) -> bool:
        """Whether no field can be a nested one."""
        return not any("." in field for field in self.fields)

    def column(self, values: Sequence[Any]) -> list[str] | None:
        """The keys of many values in one call; None if one must be extracted alone."""
        try:
            return self.texts([_column(values, field) for field in self.fields])
        except (TypeError, LookupError, AttributeError):
            return None

    def texts(self, columns: Sequence[list[Any]]) -> list[str] | None:
        """The keys from columns of fields; None if one must be extracted alone."""
        found: list[list[str]] = []
        for column in columns:
            kinds = set(map(type, column))
            if not kinds <= {str, int}:
                return None
            found.append(
                column if int not in kinds else [str(key) if type(key) is int else key for key in column]
            )
        if len(found) == 1:
            return found[0]
        return list(map(_SEPARATOR.join, zip(*(map(_escaped, texts) for texts in found), strict=True)))


_SEPARATOR = (
    "|"  # between the texts of several fields; one in a text has a backslash before it, as has a backslash
)


def joined(texts: Sequence[str]) -> str:
    """Return the key of several texts, escaped: different ones give different keys.

    >>> joined(["a", "b|c"]), joined(["a|b", "c"])
    ('a|b\\\\|c', 'a\\\\|b|c')
    """
    return _SEPARATOR.join(map(_escaped, texts))


def _escaped(text: str) -> str:
    if "\\" in text or _SEPARATOR in text:
        return text.replace("\\", "\\\\").replace(_SEPARATOR, "\\" + _SEPARATOR)
    return text


def _text(field: str, value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if type(value) is int:
        return str(value)
    raise TypeError(f"the field {field!r} is {shorten(value, 60)}: a key is made of texts and integers")


def _column(values: Sequence[Any], field: str) -> list[Any]:
    if "." not in field:
        return [value[field] for value in values]
    head, _, rest = field.partition(".")
    if "." not in rest:
        # Saves a call for each value; what is not a dict raises, and is read by `_field`.
        return [value[field] if field in value else value[head][rest] for value in values]
    return [_field(value, field) for value in values]


_MISSING: Final = object()


def _field(value: Any, field: str) -> Any:
    """A field of a value by its full name, or a nested one by its dots."""
    found = _entry(value, field)
    if found is _MISSING and "." in field:
        found = _nested(value, field)
    if found is _MISSING:
        has = list(value) if isinstance(value, dict) else list(getattr(value, "__dataclass_fields__", ()))
        shown = f"it has {', '.join(map(str, has))[:120]}" if has else f"it is {shorten(value, 60)}"
        raise _NoField(f"the value has no field {field!r}: {shown}")
    return found


def field_of(value: Any, field: str) -> Any:
    """A field of a value, plain or nested, or None if it is missing.

    >>> field_of({"user": {"id": 7}}, "user.id"), field_of({"user.id": 8}, "user.id"), field_of({}, "x")
    (7, 8, None)
    """
    found = _entry(value, field)
    if found is _MISSING and "." in field:
        found = _nested(value, field)
    return None if found is _MISSING else found


def has_field(value: Any, field: str) -> bool:
    """Whether a value has a field, plain or nested; its value may be None.

    >>> has_field({"user": {"id": None}}, "user.id"), has_field({"user": 7}, "user.id")
    (True, False)
    """
    found = _entry(value, field)
    return (found if found is not _MISSING or "." not in field else _nested(value, field)) is not _MISSING


def field_names(value: Any) -> list[str]:
    """The names of the fields of a dict or a dataclass, nested ones with a dot.

    >>> field_names({"user": {"id": 7}, "price": 3})
    ['user.id', 'price']
    """
    if not isinstance(value, dict):
        return list(getattr(value, "__dataclass_fields__", ()))
    found: list[str] = []
    for name, inner in value.items():
        if isinstance(name, str):
            found += [f"{name}.{each}" for each in inner] if isinstance(inner, dict) and inner else [name]
    return found


class _NoField(KeyError):
    """A value lacks a key field."""

    def __str__(self) -> str:
        return str(self.args[0])


_NoField.__name__ = "KeyError"  # the name that users expect


def _nested(value: Any, field: str) -> Any:
    dot = field.rfind(".")
    while dot >= 0:  # the longest name with a dot comes first
        head = _entry(value, field[:dot])
        if head is not _MISSING:
            rest = field[dot + 1 :]
            found = _entry(head, rest)
            if found is _MISSING:
                found = _nested(head, rest)
            if found is not _MISSING:
                return found
        dot = field.rfind(".", 0, dot)
    return _MISSING


_WITHOUT_FIELDS: Final = frozenset({str, bytes, bool, int, float, list, tuple, type(None)})


def _entry(value: Any, field: str) -> Any:
    if isinstance(value, dict):
        return value.get(field, _MISSING)
    if type(value) in _WITHOUT_FIELDS:  # `count` of a list, or `title` of a text, is a method of Python's
        return _MISSING
    return getattr(value, field, _MISSING)


class ByKey:
    """Keeps the producer's key, so that producer and consumer share intervals."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "by_key"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByKey)

    def __hash__(self) -> int:
        return hash(ByKey)

    def __call__(self, record: Record) -> str:
        return record.key


def by(*fields: str) -> By:
    """A key extractor for fields of the value (of a dict or a dataclass).

    >>> by("query")(Record(value={"query": "cat videos"}, timestamp=0))
    'cat videos'
    >>> by("user")(Record(value={"user": 7}, timestamp=0))
    '7'

    A name with a dot is a nested field, unless there is one of that full name; of several fields, different
    values give different keys:

    >>> by("user.id")(Record(value={"user": {"id": 7}}, timestamp=0))
    '7'
    >>> by("country", "city")(Record(value={"country": "de", "city": "Berlin"}, timestamp=0))
    'de|Berlin'
    """
    for field in fields:
        if not isinstance(field, str) or not field:
            raise PipelineError(f"by() takes the names of fields, not {field!r}")
    if not fields:
        raise PipelineError("by() takes the name of at least one field")
    return By(*fields)


by_key: Final = ByKey()
"""The key extractor that keeps the producer's key."""


def key_bytes(key: str) -> bytes:
    """A key's bytes, for any ``str``, lone surrogates included."""
    try:
        return key.encode()
    except UnicodeEncodeError:
        return key.encode("utf-8", "surrogatepass")


def key_text(data: bytes) -> str:
    """The inverse of `key_bytes`."""
    return data.decode("utf-8", "surrogatepass")


def fingerprint(data: bytes) -> bytes:
    """The 8-byte fingerprint of a key's bytes, big-endian: sorts like the number.

    >>> fingerprint(b"cat videos") == fingerprint(b"cat videos")
    True
    """
    return _digest(data)


def tablet(key: str, tablets: int = TABLETS) -> int:
    """The tablet of a key, of ``tablets``: the first bits of its fingerprint."""
    return xxhash.xxh3_64_intdigest(key_bytes(key)) >> 65 - tablets.bit_length()
