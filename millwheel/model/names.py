"""Names inside the engine: typed values, never marks inside a user's text.

A stream, a computation and a partition are named by any text without control characters. The engine's own
names, of an injector or a percentile watermark, are tuples with such texts in them: no text equals one. A
journal or a frame may restore a tuple without its type; it is still equal, and finds the same entry.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any, NamedTuple
from urllib.parse import quote

from millwheel.errors import PipelineError

_LONGEST_FOLDER = 200  # bytes: file systems allow 255
_UNNAMED = "\x1f"  # after the label of an unnamed stream
_NUMBERED = re.compile(r"#[0-9]+\Z")


class SourceName(NamedTuple):
    """An injector: its stream, its number among the stream's injectors, its reader."""

    stream: str
    number: int = 1
    """From 1, in the order of `Pipeline.inject`."""
    reader: str = ""
    """The only computation that it is read for: see `millwheel.model.replay`."""

    def __str__(self) -> str:
        """The name for display, unique among shared injectors.

        >>> [str(SourceName("a")), str(SourceName("a", 2)), str(SourceName("a#2"))]
        ['a', 'a#2', 'a#2#1']
        """
        plain = self.number == 1 and not _NUMBERED.search(self.stream)
        shown = self.stream if plain else f"{self.stream}#{self.number}"
        return f"{shown} replayed to {self.reader}" if self.reader else shown

    @property
    def original(self) -> SourceName:
        """The injector that is read a second time; itself if it is shared."""
        return SourceName(self.stream, self.number)


class Unnamed(NamedTuple):
    """An operator's stream without a name: a label, and its number for that label.

    Streams are stored under texts; this one's has a control character, which no user's name has.
    """

    label: str
    number: int = 1

    def __str__(self) -> str:
        """The name for display.

        >>> str(Unnamed("clicks.filter")), str(Unnamed("clicks.filter", 2))
        ('clicks.filter', 'clicks.filter 2')
        """
        return self.label if self.number == 1 else f"{self.label} {self.number}"

    @property
    def key(self) -> str:
        """The text that it is stored under."""
        return self.label + _UNNAMED + ("" if self.number == 1 else str(self.number))

    @staticmethod
    def of(stream: str) -> Unnamed | None:
        """The unnamed stream of a stored text; None if it is a user's name.

        >>> Unnamed.of(Unnamed("clicks.filter", 2).key)
        Unnamed(label='clicks.filter', number=2)
        """
        label, mark, number = stream.partition(_UNNAMED)
        return Unnamed(label, int(number) if number.isdecimal() else 1) if mark else None


Sender = str | SourceName
"""A sender of watermarks: a computation, by its name, or an injector."""


class Percentile(NamedTuple):
    """A sender's percentile low watermark (7.2), sent beside the exact one."""

    sender: Sender
    percentile: float


WatermarkName = Sender | Percentile
"""The name of a watermark: its sender, or its sender and the percentile."""


def source_name(value: Any) -> SourceName:
    """An injector's name from its journaled form."""
    return SourceName(*value)


def watermark_name(value: Any) -> WatermarkName:
    """A watermark's name from its journaled form.

    >>> watermark_name((("a", 1, ""), 0.99))
    Percentile(sender=SourceName(stream='a', number=1, reader=''), percentile=0.99)
    """
    if isinstance(value, str):
        return value
    if len(value) == len(SourceName._fields):
        return SourceName(*value)
    sender, percentile = value
    return Percentile(sender if isinstance(sender, str) else SourceName(*sender), percentile)


def check_name(what: str, name: object, where: str = "", *, empty: bool = False) -> None:
    """Refuses an invalid name; valid is any text without control characters (Cc)."""
    prefix = f"{where}: " if where else ""
    if not isinstance(name, str) or not (name or empty):
        raise PipelineError(f"{prefix}{what} has a name, a text that is not empty, not {name!r}")
    for place, char in enumerate(name):
        if unicodedata.category(char) == "Cc":
            raise PipelineError(
                f"{prefix}the name of {what} has the control character {char!r} at position {place}: "
                f"{name!r}. A name is any text without control characters: remove it"
            )


def folder_name(name: str) -> str:
    """A name as one part of a path; unique for each name.

    >>> folder_name("a/b"), folder_name("a%2Fb"), folder_name("..")
    ('a%2Fb', 'a%252Fb', '%2E%2E')
    """
    data = name.encode("utf-8", "surrogatepass")
    quoted = quote(data, safe=" #@")
    if len(quoted) > _LONGEST_FOLDER:
        return "%-" + hashlib.blake2b(data, digest_size=32).hexdigest()
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")
