"""Derived streams: results of `map`, `filter`, `flat_map`, `key_by` and `union`.

A derived stream has no computation, no state and no shuffle of its own: the producer of a record of one of
its parents (a computation or an injecting task) applies the steps. So its producers, and with them
its low watermark, are those of its parents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from millwheel.model.names import Unnamed
from millwheel.model.record import Record

StepKind = Literal["map", "filter", "flat_map", "key", "with_key", "lookup"]


@dataclass(frozen=True)
class Step:
    """One function applied to the values of a stream, or to whole records (``key``).

    The function of ``lookup`` is made for each epoch, from the version of a side table in its plan.
    ``with_key`` has no function: it makes ``[key, value]`` of a value, for a consumer of all keys.
    """

    kind: StepKind
    function: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return self.kind if self.function is None else f"{self.kind}({_shown(self.function)})"


@dataclass(frozen=True)
class Derived:
    """A stream that is computed from others at their producers."""

    name: str
    parents: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def label(self) -> str:
        """The name for display."""
        return public_name(self.name)


class KeptKey:
    """Takes the key of the ``key`` step; unlike `by_key` it crosses intervals."""

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
    """A key extractor from a function of the value."""

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
    """Whether a user named the stream.

    >>> is_public("clicks"), is_public(Unnamed("clicks.filter").key)
    (True, False)
    """
    return Unnamed.of(stream) is None


def public_name(stream: str) -> str:
    """A stream's name for display.

    >>> public_name("clicks"), public_name(Unnamed("clicks.filter", 2).key)
    ('clicks', 'clicks.filter 2')
    """
    return str(Unnamed.of(stream) or stream)


def public_names(streams: Iterable[str]) -> dict[str, str]:
    """By stream: its name for display, where no two have the same.

    >>> list(public_names(["clicks", Unnamed("clicks").key]).values())
    ['clicks', 'clicks 2']
    """
    every = list(streams)
    shown = {stream: stream for stream in every if is_public(stream)}
    taken = set(shown)
    for stream in every:
        unnamed = Unnamed.of(stream)
        if unnamed is not None:
            while str(unnamed) in taken:
                unnamed = unnamed._replace(number=unnamed.number + 1)
            shown[stream] = str(unnamed)
            taken.add(shown[stream])
    return shown


def _shown(function: Callable[[Any], Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
