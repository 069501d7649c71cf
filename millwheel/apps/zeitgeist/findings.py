"""What was found of what was planted, how soon, and what was found that was not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millwheel.apps.zeitgeist.synthetic import START, Planted, Traffic


@dataclass(frozen=True)
class Finding:
    """A planted anomaly, and the message that reported it, if there is one."""

    planted: Planted
    message: dict[str, Any] | None
    delay: float | None
    """Buckets from its beginning to the moment it was reported."""


@dataclass(frozen=True)
class Findings:
    """A run's anomalies against those that its traffic holds."""

    found: Sequence[Finding]
    false: Sequence[dict[str, Any]]

    @property
    def missed(self) -> list[Planted]:
        """What was planted and not reported."""
        return [finding.planted for finding in self.found if finding.message is None]


def compare(traffic: Traffic, anomalies: Iterable[dict[str, Any]]) -> Findings:
    """Matches anomalies with planted ones by key, kind and time.

    A message without a match is false.
    """
    left = sorted(anomalies, key=lambda message: (message["found"], message["key"]))
    found = []
    for planted in traffic.planted:
        mine = next((message for message in left if _tells(traffic, message, planted)), None)
        delay = None
        if mine is not None:
            left.remove(mine)
            delay = (mine["found"] - START) / traffic.width - planted.first
        found.append(Finding(planted, mine, delay))
    return Findings(found, left)


def _tells(traffic: Traffic, message: dict[str, Any], planted: Planted) -> bool:
    bucket = (message["start"] - START) // traffic.width
    same = (message["key"], message["kind"]) == (planted.key, planted.kind)
    return same and planted.first - 1 <= bucket < planted.last
