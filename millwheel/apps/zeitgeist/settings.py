"""What can be set: one value for all keys of a pipeline."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from millwheel.errors import PipelineError
from millwheel.model.time import DAY, SECOND

Kind = Literal["counts", "values"]

DAY_PARTS = 24
WEEK_PARTS = 168


@dataclass(frozen=True)
class Settings:
    """How a stream is bucketed, and when a difference is an anomaly."""

    kind: Kind = "counts"
    """``counts``: how many records a bucket has. ``values``: the mean of a field that was measured."""
    width: int = SECOND
    """The length of a bucket."""
    day: int = DAY
    """The length of the daily season; the weekly one is seven of them."""
    sensitivity: float | None = None
    """The confidence that makes an anomaly, in decades: 6 is once in a million buckets. None: a good one."""
    warmup: int = 24
    """Buckets of a key before its first comparison with a forecast."""
    calm: int | None = None
    """Buckets in a row as expected that end an anomaly. None: a good number."""
    fewest: int = 8
    """Records that make a spike, however rare the key is."""
    rare: float = 0.4
    """Records a bucket that are expected, at most, of a key that is new."""
    begin: int | None = None
    """When the stream began, if it is known: a key first seen well after it is new, and may spike at once."""

    def __post_init__(self) -> None:
        if self.kind not in ("counts", "values"):
            raise PipelineError(f"zeitgeist: kind is counts or values, not {self.kind!r}")
        if self.width < 1 or self.day < self.width:
            raise PipelineError(
                f"zeitgeist: a bucket has at least 1 microsecond and a day at least one bucket, "
                f"not {self.width} and {self.day}"
            )

    @functools.cached_property
    def buckets_a_day(self) -> int:
        """How many buckets the daily season has."""
        return max(self.day // self.width, 1)

    def day_part(self, bucket: int) -> int:
        """Which of the day's parts, hours by default, a bucket is in."""
        return bucket * self.width % self.day * DAY_PARTS // self.day

    def week_part(self, bucket: int) -> int:
        """Which of the week's parts a bucket is in."""
        return bucket * self.width % (7 * self.day) * WEEK_PARTS // (7 * self.day)
