"""Windows: the spans of event time that a record belongs to.

>>> tumbling(10).starts(25), sliding(10, 5).starts(12)
([20], [5, 10])
"""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.errors import PipelineError
from millwheel.operators.arguments import operator


@dataclass(frozen=True)
class Tumbling:
    """Consecutive windows of one size."""

    size: int
    offset: int = 0

    def starts(self, timestamp: int) -> list[int]:
        """The starts of a timestamp's windows, in order."""
        return [timestamp - (timestamp - self.offset) % self.size]

    def __repr__(self) -> str:
        return f"tumbling({self.size}, {self.offset})" if self.offset else f"tumbling({self.size})"


@dataclass(frozen=True)
class Sliding:
    """Windows of one size that begin at each multiple of ``every``."""

    size: int
    every: int

    def starts(self, timestamp: int) -> list[int]:
        """The starts of a timestamp's windows, in order."""
        last = timestamp - timestamp % self.every
        first = last - (self.size - 1 - timestamp % self.every) // self.every * self.every
        return list(range(first, last + 1, self.every))

    def __repr__(self) -> str:
        return f"sliding({self.size}, {self.every})"


@dataclass(frozen=True)
class Session:
    """Windows that last as long as no two records of a key are ``gap`` or more apart."""

    gap: int

    def __repr__(self) -> str:
        return f"session({self.gap})"


_LONGEST = 1 << 63

Fixed = Tumbling | Sliding
Window = Tumbling | Sliding | Session


@operator("windows")
def tumbling(size: int, offset: int = 0) -> Tumbling:
    """Consecutive windows of ``size`` microseconds, from ``offset`` on.

    >>> tumbling(10, offset=3).starts(12)
    [3]
    """
    return Tumbling(duration("tumbling: size", size), duration("tumbling: offset", offset, least=None))


@operator("windows")
def sliding(size: int, every: int) -> Sliding:
    """Windows of ``size`` microseconds, one each ``every``; with overlaps or gaps.

    >>> sliding(5, 10).starts(7)
    []
    """
    return Sliding(duration("sliding: size", size), duration("sliding: every", every))


@operator("windows")
def session(gap: int) -> Session:
    """A window from a key's first record to ``gap`` microseconds after its last."""
    return Session(duration("session: gap", gap))


def duration(what: str, value: object, *, least: int | None = 1) -> int:
    """A number of microseconds, checked; ``1.5 * mw.SECOND`` is one.

    >>> duration("size", 1.5 * 1_000_000)
    1500000
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PipelineError(
            f"{what} is a whole number of microseconds, such as 10 * millwheel.SECOND, not {value!r}"
        )
    if abs(value) > _LONGEST:
        raise PipelineError(f"{what} is {_LONGEST} microseconds at most, all of time, not {value!r}")
    if least is not None and value < least:
        raise PipelineError(
            f"{what} is {least} microsecond or more, not {value!r}"
            if least
            else f"{what} is not negative, it is {value!r}"
        )
    return value
