"""Derived streams: what `map`, `filter`, `flat_map`, `key_by` and `union` make of other streams.

A derived stream has no computation, no state and no shuffle of its own: whoever puts a record on one of its
parents (a computation or an injecting task) applies the steps there and then. So its producers, and with them
its low watermark, are those of its parents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from millwheel.model.names import Unnamed
from millwheel.model.record import Record

StepKind = Literal["map", "filter", "flat_map", "key", "with_key"]


@dataclass(frozen=True)
class Step:
    """One function applied to the values of a stream, or to whole records (``key``).

    ``with_key`` has no function: it makes ``[key, value]`` of a value, for a consumer that takes all keys.
    """

    kind: StepKind
    function: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return self.kind if self.function is None else f"{self.kind}({_shown(self.function)})"


@dataclass(frozen=True)
class Derived:
    """A stream that is computed from others where their records are produced."""

    name: str
    parents: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def label(self) -> str:
        """The name for people."""
        return public_name(self.name)


class KeptKey:
    """Takes the key that a ``key`` step gave the record; unlike `by_key` it crosses intervals."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "the key of the stream"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptKey)

    def __hash__(self) -> int:
        return hash(KeptKey)

    def __call__(self, record: Record) -> str:
        return record.key


class OfValue:
    """A key extractor made of a function of the value."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return _shown(self.function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfValue) and other.function == self.function

    def __hash__(self) -> int:
        return hash((OfValue, self.function))

    def __call__(self, record: Record) -> Any:
        return self.function(record.value)


def is_public(stream: str) -> bool:
    """Whether a stream has a name that a user gave it.

    >>> is_public("clicks"), is_public(Unnamed("clicks.filter").key)
    (True, False)
    """
    return Unnamed.of(stream) is None


def public_name(stream: str) -> str:
    """A stream's name for people.

    >>> public_name("clicks"), public_name(Unnamed("clicks.filter", 2).key)
    ('clicks', 'clicks.filter 2')
    """
    return str(Unnamed.of(stream) or stream)


def _shown(function: Callable[[Any], Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
