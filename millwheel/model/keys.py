"""Keys: extractors, which the consumer of a stream gives (4.2), and fingerprints, which place a key.

A key's fingerprint is a stable 64-bit hash of its text, so intervals of fingerprints split evenly
whatever the keys look like, and every process agrees on them (``hash()`` of a ``str`` does not).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import xxhash

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
    """Takes a field of the value as the key; an ``int`` becomes its decimal text."""

    __slots__ = ("field",)

    def __init__(self, field: str) -> None:
        self.field = field

    def __repr__(self) -> str:
        return f"by({self.field!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, By) and other.field == self.field

    def __hash__(self) -> int:
        return hash((By, self.field))

    def __call__(self, record: Record) -> Any:
        value = record.value
        key = value[self.field] if isinstance(value, dict) else getattr(value, self.field)
        return str(key) if type(key) is int else key

    def column(self, values: Sequence[Any]) -> list[str] | None:
        """The keys of many values at once, or None where one of them needs a closer look."""
        field = self.field
        try:
            return self.texts([value[field] for value in values])
        except (TypeError, KeyError, IndexError):
            return None

    def texts(self, keys: list[Any]) -> list[str] | None:
        """The keys that the fields of many values are, or None where one of them needs a closer look."""
        kinds = set(map(type, keys))
        if kinds <= {str}:
            return keys
        if kinds <= {str, int}:
            return [str(key) if type(key) is int else key for key in keys]
        return None


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


def by(field: str) -> By:
    """A key extractor that takes ``field`` of the value (a dict's entry or a dataclass's field).

    >>> by("query")(Record(value={"query": "cat videos"}, timestamp=0))
    'cat videos'
    >>> by("user")(Record(value={"user": 7}, timestamp=0))
    '7'
    """
    if not isinstance(field, str) or not field:
        raise TypeError(f"by() takes the name of a field, not {field!r}")
    return By(field)


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
