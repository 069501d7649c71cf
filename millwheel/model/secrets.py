"""Secrets stay out of messages: passwords in URLs, tokens, keys of client configurations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

HIDDEN = "***"

_NAMES = re.compile(r"pass|secret|token|credential|sasl\.jaas|private|\.key$|\.pem$|^key$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)([^/?#@]*):([^/?#]*)@")
_SETTING = re.compile(
    r"\b(\w*(?:pass|secret|token|credential)\w*)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&;]+)", re.IGNORECASE
)


def is_secret(name: str) -> bool:
    """Whether a setting of that name holds a secret.

    >>> is_secret("sasl.password"), is_secret("bootstrap.servers")
    (True, False)
    """
    return _NAMES.search(name) is not None


def without_secrets(text: str) -> str:
    """A URL or a connection string as it may be shown.

    >>> without_secrets("postgresql://me:s3cret@db/x?sslpassword=abc")
    'postgresql://me:***@db/x?sslpassword=***'
    >>> without_secrets("host=db password='s3 cret' user=me")
    'host=db password=*** user=me'
    """
    text = _USER_INFO.sub(rf"\1:{HIDDEN}@", text)
    return _SETTING.sub(rf"\1\2{HIDDEN}", text)


def secrets_of(text: str) -> list[str]:
    """The secrets in a URL or a connection string, as they are written and as they are meant."""
    found = [match[2] for match in _USER_INFO.finditer(text)]
    found += [match[3].strip("'") for match in _SETTING.finditer(text)]
    if "://" in text:
        found += [value for name, value in parse_qsl(urlsplit(text).query) if is_secret(name)]
    return found


def hide(message: object, secrets: Iterable[str]) -> str:
    """A message in which no secret is left.

    >>> hide("login of me with s3%20cret failed", ["s3 cret"])
    'login of me with *** failed'
    """
    text = str(message)
    forms = {form for secret in secrets for form in (secret, unquote(secret), quote(secret, safe="")) if form}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


def shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a client as they may be shown.

    >>> shown({"bootstrap.servers": "b:9092", "sasl.password": "s3cret"})
    {'bootstrap.servers': 'b:9092', 'sasl.password': '***'}
    """
    return {name: HIDDEN if is_secret(name) else value for name, value in settings.items()}
