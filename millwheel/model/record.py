"""Records: (key, value, timestamp) triples with a stream and an ID (paper 3)."""

from __future__ import annotations

from typing import Any, NamedTuple

RecordId = str | int | bytes


class Record(NamedTuple):
    """One record as a hook or a key extractor sees it. Build it by keywords.

    >>> Record(value={"query": "cat videos"}, timestamp=3_000_000).key
    ''
    """

    value: Any
    timestamp: int
    key: str = ""
    stream: str = ""
    id: RecordId | None = None
    late: bool = False
