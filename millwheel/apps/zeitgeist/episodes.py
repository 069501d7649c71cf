"""Episodes: an anomaly is reported once, not once a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from millwheel.apps.zeitgeist.settings import DAY_PARTS, Settings
from millwheel.model.time import DAY

SPIKE = "spike"
DIP = "dip"


class Verdict(NamedTuple):
    """The result of a bucket: the side of the change, its start and its confidence.

    The confidence is in decades.
    """

    side: int = 0
    confidence: float = 0.0
    since: int = 0
    expected: float = 0.0
    calm: bool = True

    @property
    def kind(self) -> str:
        """What an anomaly to this side is called."""
        return SPIKE if self.side > 0 else DIP


CALM = Verdict()
"""The verdict of a bucket that is as expected."""


@dataclass
class Episode:
    """An anomaly that has begun, as a few numbers; a key has at most one."""

    kind: str
    start: int
    found: int
    confidence: float
    actual: float
    expected: float
    calm: int = 0

    def message(self, settings: Settings, key: str, end: int | None = None) -> dict[str, Any]:
        """The anomaly as a message: times in microseconds, ``end`` once it has one."""
        told: dict[str, Any] = {
            "key": key,
            "kind": self.kind,
            "start": self.start * settings.width,
            "found": self.found,
            "confidence": round(self.confidence, 2),
            "actual": round(self.actual, 3),
            "expected": round(self.expected, 3),
            "why": self.why(settings),
        }
        if end is not None:
            told["end"] = end * settings.width
        return told

    def why(self, settings: Settings) -> str:
        """The reason in words: the part of the usual count, and the time of day."""
        part = self.start * settings.width % settings.day * DAY_PARTS // settings.day
        when = (
            f"at {part:02}:00" if settings.day == DAY else f"in part {part + 1} of {DAY_PARTS} of the season"
        )
        if not self.actual:
            return f"none {when}, usually {self.expected:.3g}"
        if self.actual * self.expected <= 0.0:
            return f"{self.actual:.3g} {when}, usually {self.expected:.3g}"
        times = self.actual / self.expected
        if 0.9 < times < 1.1:
            return f"near the usual {when}, but not as it usually moves"
        return (
            f"{times:,.0f} times the usual {when}" if times >= 10.0 else f"{times:.2g} times the usual {when}"
        )

    def extend(self, settings: Settings, bucket: int, actual: float, verdict: Verdict) -> int | None:
        """Adds the next bucket; returns the first normal one if the anomaly has ended."""
        if verdict.confidence > self.confidence and verdict.kind == self.kind:
            self.confidence, self.actual, self.expected = verdict.confidence, actual, verdict.expected
        self.calm = self.calm + 1 if verdict.calm else 0
        return bucket - self.calm + 1 if self.calm >= (settings.calm or _CALM[settings.kind]) else None


_CALM = {"counts": 3, "values": 20}  # a measured value that was odd often is so again soon
