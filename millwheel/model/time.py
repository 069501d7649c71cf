"""Time: microseconds since the Unix epoch, and the two clocks of timers (4.6).

>>> 90 * SECOND == 3 * MINUTE // 2
True
"""

from __future__ import annotations

import datetime
from typing import Final, Literal

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

MIN_TIME: Final = -(2**63)
"""The watermark before the first value."""
MAX_TIME: Final = 2**63 - 1
"""The watermark at the end of time."""

Clock = Literal["watermark", "wall"]
WATERMARK: Final = "watermark"
WALL: Final = "wall"


def format_time(time: int) -> str:
    """A time for display.

    >>> format_time(1296167641 * SECOND)
    '2011-01-27T22:34:01.000000Z'
    >>> format_time(MIN_TIME), format_time(MAX_TIME)
    ('-inf', '+inf')
    """
    if time == MIN_TIME:
        return "-inf"
    if time == MAX_TIME:
        return "+inf"
    try:
        moment = datetime.datetime.fromtimestamp(time // SECOND, datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return str(time)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time % SECOND:06d}Z"
