"""Keys: extractors, which the consumer of a stream gives (4.2), and fingerprints, which place a key.

A key's fingerprint is a stable 64-bit hash of its text, so intervals of fingerprints split evenly
whatever the keys look like, and every process agrees on them (``hash()`` of a ``str`` does not).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import xxhash

from millwheel.errors import PipelineError, shorten
from millwheel.model.record import Record

TABLETS: Final = 64
"""The key space is cut into this many equal tablets; an interval is a run of whole tablets.

64 lets 64 slots work in parallel, and keeps the seeks that find an interval's next timer, one per
tablet, far below a millisecond.
"""

_digest = xxhash.xxh3_64_digest


class _Skip:
    """The type of `SKIP`; a singleton, also after pickling."""

    def __repr__(self) -> str:
        return "millwheel.SKIP"

    def __reduce__(self) -> str:
        return "SKIP"


SKIP: Final = _Skip()
"""What an extractor returns for a record that is not for this consumer."""

KeyExtractor = Callable[[Record], Any]


class By:
    """Takes fields of the value as the key: the text of one, or the texts of several, each escaped."""

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
        return _SEPARATOR.join(map(_escaped, texts))

    @property
    def plain(self) -> bool:
        """Whether each field is one of the value itself, by its whole name: none may be a nested one."""
        return not any("." in field for field in self.fields)

    def column(self, values: Sequence[Any]) -> list[str] | None:
        """The keys of many values at once, or None where one of them needs a closer look."""
        try:
            return self.texts([_column(values, field) for field in self.fields])
        except (TypeError, LookupError, AttributeError):
            return None

    def texts(self, columns: Sequence[list[Any]]) -> list[str] | None:
        """The keys that columns of fields make, or None where a value in them needs a closer look."""
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
        # One call less for each value than `_field`; what is no dict raises, and is read again by that.
        return [value[field] if field in value else value[head][rest] for value in values]
    return [_field(value, field) for value in values]


_MISSING: Final = object()


def _field(value: Any, field: str) -> Any:
    """A field of a value by its whole name, or else a nested one: what is before a dot, then the rest."""
    found = _entry(value, field)
    if found is _MISSING and "." in field:
        found = _nested(value, field)
    if found is _MISSING:
        has = list(value) if isinstance(value, dict) else list(getattr(value, "__dataclass_fields__", ()))
        shown = f"it has {', '.join(map(str, has))[:120]}" if has else f"it is {shorten(value, 60)}"
        raise _NoField(f"the value has no field {field!r}: {shown}")
    return found


def field_of(value: Any, field: str) -> Any:
    """A field of a value, plain or nested, or None where it has none.

    >>> field_of({"user": {"id": 7}}, "user.id"), field_of({"user.id": 8}, "user.id"), field_of({}, "x")
    (7, 8, None)
    """
    found = _entry(value, field)
    if found is _MISSING and "." in field:
        found = _nested(value, field)
    return None if found is _MISSING else found


class _NoField(KeyError):
    """A value does not have the field that is its key."""

    def __str__(self) -> str:
        return str(self.args[0])


_NoField.__name__ = "KeyError"  # as which a user knows it


def _nested(value: Any, field: str) -> Any:
    dot = field.rfind(".")
    while dot >= 0:  # the longest name that has a dot in it comes first
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


def _entry(value: Any, field: str) -> Any:
    return value.get(field, _MISSING) if isinstance(value, dict) else getattr(value, field, _MISSING)


class ByKey:
    """Keeps the key that the producer had, so that producer and consumer share intervals."""

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
    """A key extractor that takes fields of the value (a dict's entries or a dataclass's fields).

    >>> by("query")(Record(value={"query": "cat videos"}, timestamp=0))
    'cat videos'
    >>> by("user")(Record(value={"user": 7}, timestamp=0))
    '7'

    A name with a dot is a nested field, where there is none of that whole name; of several fields, different
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
    """A key's bytes; any ``str`` has some, lone surrogates included."""
    try:
        return key.encode()
    except UnicodeEncodeError:
        return key.encode("utf-8", "surrogatepass")


def key_text(data: bytes) -> str:
    """The inverse of `key_bytes`."""
    return data.decode("utf-8", "surrogatepass")


def fingerprint(data: bytes) -> bytes:
    """The 8-byte fingerprint of a key's bytes, big-endian: it sorts as the number does.

    >>> fingerprint(b"cat videos") == fingerprint(b"cat videos")
    True
    """
    return _digest(data)


def tablet(key: str) -> int:
    """The tablet that a key lives in."""
    return _digest(key_bytes(key))[0] >> 2
