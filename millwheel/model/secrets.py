"""Keeps secrets out of messages: passwords in URLs, tokens, client settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

HIDDEN = "***"

_NAMES = re.compile(r"pass|secret|token|credential|sasl\.jaas|private|\.key$|\.pem$|^key$", re.IGNORECASE)
_ENDS = "/?#"  # the characters that end the user and host of a URL
_PARAMETER = re.compile(r"&[A-Za-z_][\w.-]*=")
_PORTS = re.compile(r"[^:]*(?::\d*)?")


def is_secret(name: str) -> bool:
    """Whether a setting of that name holds a secret.

    >>> is_secret("sasl.password"), is_secret("bootstrap.servers")
    (True, False)
    """
    return _NAMES.search(name) is not None


def without_secrets(text: str) -> str:
    """A URL or a connection string for display, without secrets.

    >>> without_secrets("postgresql://me:s3cret@db/x?sslpassword=abc")
    'postgresql://me:***@db/x?sslpassword=***'
    >>> without_secrets("host=db password='s3 cret' user=me")
    'host=db password=*** user=me'
    """
    for start, end in reversed(_spans(text)):
        text = text[:start] + HIDDEN + text[end:]
    return text


def secrets_of(text: str) -> list[str]:
    """The secrets in a URL or a connection string, as written and as decoded.

    >>> secrets_of("host=db password='s3 cret' user=me")
    ["'s3 cret'", 's3 cret', "'s3", "cret'"]
    """
    found: dict[str, None] = {}
    for start, end in _spans(text):
        secret = text[start:end]
        # A client that parses it differently reports a part of it.
        pieces = [piece for piece in _MARKS.split(secret) if len(piece) > 1]
        found.update(dict.fromkeys([secret, _meant(secret), *(pieces if len(pieces) > 1 else ())]))
    return [secret for secret in found if secret]


_MARKS = re.compile(r"[/?#@:&=\s]")


def percent_encoded(url: str) -> str:
    """A URL whose password is percent-encoded, as every parser accepts it.

    Many write passwords as they are, and clients differ in parsing that. A `ValueError`
    reports an ambiguous one; it shows neither reading.

    >>> percent_encoded("postgresql://me:a#b@c@db/x"), percent_encoded("postgresql://me:a%23b@db/x")
    ('postgresql://me:a%23b%40c@db/x', 'postgresql://me:a%23b@db/x')
    """
    begin = _authority(url)
    if begin:
        before, mark, query = url.partition("?")
        url = before + mark + query.replace("#", "%23")  # database clients have no fragments
    last = url.rfind("@", begin)
    if not begin or last < 0 or ":" not in url[begin:last]:
        return url
    end = min((at for mark in _ENDS if (at := url.find(mark, begin)) >= 0), default=len(url))
    hosts = url[begin:end]
    if last > end and ("@" in hosts or all(map(_PORTS.fullmatch, hosts.split(",")))):
        raise ValueError(
            "it has an @ after a / ? or #, which is ambiguous: write / ? # @ : in a password as "
            "%2F %3F %23 %40 %3A, and an @ elsewhere as %40"
        )
    user, _, password = url[begin:last].partition(":")
    return f"{url[:begin]}{_escaped(user)}:{_escaped(password)}{url[last:]}"


def _escaped(text: str) -> str:
    """Percent-encodes what is not encoded already."""
    return "".join(
        part if index % 2 else quote(part, safe="") for index, part in enumerate(_ESCAPES.split(text))
    )


_ESCAPES = re.compile(r"(%[0-9A-Fa-f]{2})")


def _authority(text: str) -> int:
    """The offset of the user or the host of a URL; 0 if it is not a URL."""
    at = text.find("://")
    return at + 3 if at >= 0 else 0


def _spans(text: str) -> list[tuple[int, int]]:
    """The spans of the secrets in a URL or a connection string.

    In doubt it is a secret: everything from the first colon to the last @ of a URL.
    """
    begin = _authority(text)
    if not begin:
        return _setting_spans(text)
    found = []
    last = text.rfind("@", begin)
    colon = text.find(":", begin, max(last, begin))
    if colon >= 0:
        found.append((colon + 1, last))
    at = text.find("?", begin) + 1
    while at and at <= len(text):
        end = text.find("&", at)
        end = len(text) if end < 0 else end
        name, separator, _ = text[at:end].partition("=")
        if separator and is_secret(unquote(name)):
            start = at + len(name) + 1
            while end < len(text) and not _PARAMETER.match(text, end):  # an & in the secret itself
                further = text.find("&", end + 1)
                end = len(text) if further < 0 else further
            found.append((start, end))
        at = end + 1
    return _merged(found)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merges overlapping spans."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


# As in libpq: a value is quoted or ends at a blank; a backslash escapes the next character.
_PAIR = re.compile(r"\s*([^\s=]+)\s*=\s*('(?:[^'\\]|\\.)*(?:'|\Z)|(?:[^\s\\]|\\.)*)", re.DOTALL)


def _setting_spans(text: str) -> list[tuple[int, int]]:
    """The same in a connection string, ``host=db password='s3 cret'``.

    Words outside of settings may be part of a secret that lacks its quotes.
    """
    found: list[tuple[int, int]] = []
    at = 0
    for match in _PAIR.finditer(text):
        if found and text[at : match.start()].strip():
            found.append((at + 1, match.start()))
        at = match.end()
        if is_secret(match[1]):
            found.append(match.span(2))
    if found and text[at:].strip():
        found.append((at + 1, len(text)))
    return found


def _meant(secret: str) -> str:
    """A secret of a connection string without its quotes."""
    if len(secret) > 1 and secret[0] == secret[-1] == "'":
        secret = secret[1:-1]
    return re.sub(r"\\(.)", r"\1", secret, flags=re.DOTALL)


def hide(message: object, secrets: Iterable[str]) -> str:
    """A message without secrets.

    >>> hide("login of me with s3%20cret failed", ["s3 cret"])
    'login of me with *** failed'
    """
    text = str(message)
    forms = set()
    for secret in filter(None, secrets):
        forms |= {secret, unquote(secret), unquote_plus(secret), quote(secret, safe=""), _escaped(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


def environment_secrets() -> list[str]:
    """The values of environment variables that are secret by their name."""
    return [value for name, value in os.environ.items() if is_secret(name)]


def shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a client for display, without secrets.

    >>> shown({"bootstrap.servers": "b:9092", "sasl.password": "s3cret"})
    {'bootstrap.servers': 'b:9092', 'sasl.password': '***'}
    """
    return {name: HIDDEN if is_secret(name) else value for name, value in settings.items()}
