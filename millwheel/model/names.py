"""Names inside the engine: values of their own types, never marks inside a user's text.

A stream, a computation and a partition are named by any text without control characters. What the engine
names itself, an injector, a percentile watermark, is a tuple with such texts in it: no text is equal to it. A
journal or a frame may bring a tuple back without its type; it is equal still, and finds the same entry.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any, NamedTuple
from urllib.parse import quote

from millwheel.errors import PipelineError

_LONGEST_FOLDER = 200  # bytes: file systems take 255
_UNNAMED = "\x1f"  # behind the label of a stream that nobody named
_NUMBERED = re.compile(r"#[0-9]+\Z")


class SourceName(NamedTuple):
    """An injector: the stream that it feeds, which of the stream's injectors it is, and for whom it reads."""

    stream: str
    number: int = 1
    """From 1, in the order of `Pipeline.inject`."""
    reader: str = ""
    """The computation that it is read for alone: see `millwheel.model.replay`."""

    def __str__(self) -> str:
        """How it is shown: two that are read for all are never shown alike.

        >>> [str(SourceName("a")), str(SourceName("a", 2)), str(SourceName("a#2"))]
        ['a', 'a#2', 'a#2#1']
        """
        plain = self.number == 1 and not _NUMBERED.search(self.stream)
        shown = self.stream if plain else f"{self.stream}#{self.number}"
        return f"{shown} replayed to {self.reader}" if self.reader else shown

    @property
    def original(self) -> SourceName:
        """The injector that is read once more; itself, where it is read for all."""
        return SourceName(self.stream, self.number)


class Unnamed(NamedTuple):
    """A stream that an operator made and nobody named: a label for people, and which of that label it is.

    Streams are kept under texts; this one's has a control character in it, as no name of a user's has.
    """

    label: str
    number: int = 1

    def __str__(self) -> str:
        """How it is shown.

        >>> str(Unnamed("clicks.filter")), str(Unnamed("clicks.filter", 2))
        ('clicks.filter', 'clicks.filter 2')
        """
        return self.label if self.number == 1 else f"{self.label} {self.number}"

    @property
    def key(self) -> str:
        """The text that it is kept under."""
        return self.label + _UNNAMED + ("" if self.number == 1 else str(self.number))

    @staticmethod
    def of(stream: str) -> Unnamed | None:
        """The unnamed stream that is kept under a text; None where it is a name.

        >>> Unnamed.of(Unnamed("clicks.filter", 2).key)
        Unnamed(label='clicks.filter', number=2)
        """
        label, mark, number = stream.partition(_UNNAMED)
        return Unnamed(label, int(number) if number.isdecimal() else 1) if mark else None


Sender = str | SourceName
"""Who sends watermarks: a computation, by its name, or an injector."""


class Percentile(NamedTuple):
    """A sender's percentile low watermark (7.2), which travels beside the exact one."""

    sender: Sender
    percentile: float


WatermarkName = Sender | Percentile
"""What a watermark is known by: its sender, or its sender and the percentile."""


def source_name(value: Any) -> SourceName:
    """An injector's name, from what the journal has for it."""
    return SourceName(*value)


def watermark_name(value: Any) -> WatermarkName:
    """A watermark's name, from what the journal has for it.

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
    """Refuses what is not a name: any text without control characters (Unicode's Cc)."""
    prefix = f"{where}: " if where else ""
    if not isinstance(name, str) or not (name or empty):
        raise PipelineError(f"{prefix}{what} has a name, a text that is not empty, not {name!r}")
    for place, char in enumerate(name):
        if unicodedata.category(char) == "Cc":
            raise PipelineError(
                f"{prefix}the name of {what} has the control character {char!r} at position {place}: "
                f"{name!r}. A name is any text without control characters: take it out"
            )


def folder_name(name: str) -> str:
    """A name as one part of a path; two names are never the same folder.

    >>> folder_name("a/b"), folder_name("a%2Fb"), folder_name("..")
    ('a%2Fb', 'a%252Fb', '%2E%2E')
    """
    data = name.encode("utf-8", "surrogatepass")
    quoted = quote(data, safe=" #@")
    if len(quoted) > _LONGEST_FOLDER:
        return "%-" + hashlib.blake2b(data, digest_size=32).hexdigest()
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")
