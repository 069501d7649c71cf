"""Values of tables in MessagePack types: times in microseconds, dates as text."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

from millwheel.model.time import SECOND

_UNIX_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)


def plain_value(value: Any) -> Any:
    """Return a value, and what is nested in it, in MessagePack types.

    >>> plain_value({"at": datetime.datetime(1970, 1, 1, 0, 0, 1), "price": decimal.Decimal("1.50")})
    {'at': 1000000, 'price': '1.50'}
    """
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)
        return (moment - _UNIX_EPOCH) // _MICROSECOND
    if isinstance(value, datetime.timedelta):
        return value // _MICROSECOND
    if isinstance(value, datetime.time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * SECOND + value.microsecond
    if isinstance(value, datetime.date | decimal.Decimal | uuid.UUID):
        return str(value)
    return value
