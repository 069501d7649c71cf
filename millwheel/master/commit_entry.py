"""The journal's entry for the last commit, and its encoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millwheel.model.codec import pack, unpack
from millwheel.model.names import SourceName, WatermarkName, source_name, watermark_name
from millwheel.watermark.marks import ComputationMarks


class Holder(NamedTuple):
    """The partition that holds an injector's watermark."""

    partition: str | None
    """None: the injector as a whole."""
    watermark: int | None
    """None: the injector has no partition."""
    why: str


@dataclass
class Commit:
    """A committed epoch: the starting point of the next one, for any driver."""

    epoch: int = 0
    now: int = 0
    watermarks: dict[str, ComputationMarks] = field(default_factory=dict)
    """By computation: the authority's values."""
    sources: dict[WatermarkName, int] = field(default_factory=dict)
    """By injector: its low watermark, and its percentiles."""
    totals: dict[str, Any] | None = None
    layout: list[Any] = field(default_factory=list)
    """The intervals of the watermarks; empty if they are of several layouts."""
    holders: dict[SourceName, Holder] = field(default_factory=dict)
    """By injector: the partition that holds its watermark, its value and the reason."""
    draining: bool = False
    """Whether the epoch ignored holds: one that continues it does too."""

    def to_bytes(self) -> bytes:
        """Encodes it for the journal."""
        watermarks = {name: marks.to_value() for name, marks in self.watermarks.items()}
        return pack(
            [
                self.epoch,
                self.now,
                watermarks,
                self.sources,
                self.totals,
                self.layout,
                self.holders,
                self.draining,
            ]
        )

    @staticmethod
    def from_bytes(data: bytes | None) -> Commit:
        """The inverse of `to_bytes`; the initial value if nothing was committed."""
        if data is None:
            return Commit()
        found = Commit(*unpack(data))
        found.watermarks = {
            name: ComputationMarks.from_value(value)  # type: ignore[arg-type]
            for name, value in found.watermarks.items()
        }
        found.sources = {watermark_name(name): mark for name, mark in found.sources.items()}
        found.holders = {source_name(name): Holder(*holder) for name, holder in found.holders.items()}
        return found
