"""What the reference knows of a computation and of its keys, and what a hook reaches there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from millwheel.model.record import Record
from millwheel.model.time import MIN_TIME, WATERMARK
from tests.differential.case import NodeSpec

Unique = tuple[str, str, Any]


@dataclass
class Key:
    """One key of one computation."""

    state: Any = None
    """None: there is none."""
    deleted: bool = False
    """Whether the state was deleted in this epoch, and no later hook has asked for it."""
    timers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    holds: dict[str, int] = field(default_factory=dict)
    waiting: list[tuple[int, int, Record]] = field(default_factory=list)
    """With ``in_order``: timestamp, place in the order of arrival, record."""

    @property
    def row(self) -> bool:
        """Whether there is anything to keep."""
        return self.state is not None or bool(self.timers) or bool(self.holds)


@dataclass
class Node:
    """One computation."""

    spec: NodeSpec
    senders: tuple[str, ...]
    input: int = MIN_TIME
    lows: dict[float, int] = field(default_factory=dict)
    """By percentile: the low watermark that consumers see."""
    keys: dict[str, Key] = field(default_factory=dict)
    seen: set[Unique] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    computation: Any = None
    """Of an operator: what has its hooks."""

    def initial(self) -> Any:
        """The state of a key never seen."""
        return {} if self.computation is None else self.computation.initial_state()

    def pending(self, *, holds: bool) -> list[int]:
        """The timestamps of unfinished work (semantics 3 and 13)."""
        found: list[int] = []
        for key in self.keys.values():
            found += [time for time, clock in key.timers.values() if clock == WATERMARK]
            found += [time for time, _, _ in key.waiting]
            if holds:
                found += key.holds.values()
        return sorted(found)


class Hand:
    """What a hook reaches in the reference."""

    def __init__(self, node: Node, name: str, now: int, low_watermark: int) -> None:
        self.key = name
        self.now = now
        self.low_watermark = low_watermark
        self.timestamp = 0
        self.made: list[tuple[str, Any, int]] = []
        self.counted: Counter[str] = Counter()
        self._key = node.keys.setdefault(name, Key())
        self._initial = node.initial
        self._deletes = False

    @property
    def state(self) -> Any:
        if self._key.state is None:
            self._key.state = self._initial()
            self._key.deleted = self._key.deleted and self._deletes  # by an earlier hook: it is new
        return self._key.state

    @state.setter
    def state(self, value: Any) -> None:
        self._key.state = value
        self._key.deleted = self._key.deleted and self._deletes

    @state.deleter
    def state(self) -> None:
        self._key.state = None
        self._key.deleted = self._deletes = True
        self._key.holds.clear()

    def set_timer(self, tag: str, time: int, clock: Any = WATERMARK) -> None:
        self._key.timers[tag] = (time, clock)

    def clear_timer(self, tag: str) -> None:
        self._key.timers.pop(tag, None)

    def produce(self, stream: str, value: Any, timestamp: int | None = None) -> None:
        self.made.append((stream, value, self.timestamp if timestamp is None else timestamp))

    def hold(self, timestamp: int, tag: str = "") -> None:
        self._key.holds[tag] = timestamp

    def release(self, tag: str = "") -> None:
        self._key.holds.pop(tag, None)

    def count(self, name: str, n: int = 1) -> None:
        self.counted[name] += n
