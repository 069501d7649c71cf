"""Dataclasses that workers can import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True)
class Label:
    text: str


@dataclass
class Shape:
    name: str
    corners: list[Point] = field(default_factory=list)
    labels: dict[str, Label] = field(default_factory=dict)
    extra: Any = None


@dataclass
class Measured:
    width: int
    height: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        self.area = self.width * self.height
