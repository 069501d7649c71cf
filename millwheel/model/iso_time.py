"""Times in ISO 8601, read alike on every supported Python."""

from __future__ import annotations

import datetime
import re
import sys

_FORM = re.compile(
    r"(?P<date>\d{4}-?\d\d-?\d\d)"
    r"(?:\D(?P<time>\d\d(?::?\d\d(?::?\d\d)?)?)(?:[.,](?P<fraction>\d+))?"
    r"(?P<zone>Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?)?",
    re.ASCII,
)


def parse_on_3_10(text: str) -> datetime.datetime:
    """The time of a text, also for a Python that reads few forms of ISO 8601.

    There ``fromisoformat`` only reads what ``isoformat`` writes.

    Dates by week are not read.

    >>> parse_on_3_10("20110127T223401,5Z").isoformat()
    '2011-01-27T22:34:01.500000+00:00'
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"Invalid isoformat string: {text!r}")
    date = re.sub("-", "", found["date"])
    parts = [f"{date[:4]}-{date[4:6]}-{date[6:]}"]
    if found["time"] is not None:
        clock = _with_colons(found["time"])
        if found["fraction"]:
            if len(clock) != 8:
                raise ValueError(f"Invalid isoformat string: {text!r}")
            clock += f".{found['fraction'][:6]:0<6}"
        parts.append(f"T{clock}")
        zone = found["zone"]
        if zone == "Z":
            parts.append("+00:00")
        elif zone:
            offset = _with_colons(zone[1:])
            parts.append(zone[0] + (offset if len(offset) > 2 else f"{offset}:00"))
    return datetime.datetime.fromisoformat("".join(parts))


def _with_colons(digits: str) -> str:
    digits = digits.replace(":", "")
    return ":".join(digits[n : n + 2] for n in range(0, len(digits), 2))


parse_iso = datetime.datetime.fromisoformat if sys.version_info >= (3, 11) else parse_on_3_10
"""The time of a text in ISO 8601."""
