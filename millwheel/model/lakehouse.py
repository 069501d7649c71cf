"""Locations of lakehouse tables: folders, URLs and catalogs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from millwheel.errors import MillWheelError
from millwheel.model.extras import import_extra
from millwheel.model.secrets import is_secret, secrets_of


def place(uri: str | os.PathLike[str]) -> str:
    """Return a URL as it is, and a folder as an absolute path.

    >>> place("file:///tables/a"), place("s3://bucket/a")
    ('/tables/a', 's3://bucket/a')
    """
    text = os.fspath(uri)
    if text.startswith("file://"):
        text = text[len("file://") :]
    return text if "://" in text else os.fspath(Path(text).absolute())


def below(url: str, path: str) -> str:
    """Return the URL of a path below another's, with the same parameters.

    >>> below("s3://bucket/table?region=x", "_millwheel/a")
    's3://bucket/table/_millwheel/a?region=x'
    """
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{path}").geturl()


def client_options(uri: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its parameters, and those as options of ``deltalake``.

    >>> client_options("s3://bucket/table?endpoint=http://localhost:1&region=x")[1]["aws_endpoint"]
    'http://localhost:1'
    """
    if "://" not in uri:
        return uri, {}
    parts = urlsplit(uri)
    given = dict(parse_qsl(parts.query))
    options = {f"aws_{name}": given[name] for name in ("endpoint", "region") if name in given}
    if given.get("endpoint", "").startswith("http://"):
        options["aws_allow_http"] = "true"
    return parts._replace(query="").geturl(), options


class Catalog:
    """A catalog by its name in pyiceberg's configuration, or by its properties."""

    def __init__(self, catalog: str | Mapping[str, str]) -> None:
        if isinstance(catalog, str):
            self.name, self.properties = catalog, dict[str, str]()
        elif isinstance(catalog, Mapping):
            self.properties = {str(name): str(value) for name, value in catalog.items()}
            self.name = self.properties.pop("name", "millwheel")
        else:
            raise MillWheelError(
                f"Iceberg takes a catalog's name or its properties, not a {type(catalog).__name__}"
            )

    def public(self) -> Catalog:
        """Return it without its properties, which may be secret."""
        return Catalog(self.name)

    def load(self) -> Any:
        """Return pyiceberg's object for it."""
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.name, **self.properties)

    def with_parameters(self, url: str) -> str:
        """Return a table's URL with the catalog's endpoint and region."""
        known = {name: self.properties.get(f"s3.{name}") for name in ("endpoint", "region")}
        given = {name: value for name, value in known.items() if value}
        return f"{url}?{urlencode(given, safe=':/')}" if "://" in url and given else url

    def secrets(self) -> list[str]:
        """The secrets that no message may contain."""
        found = [value for name, value in self.properties.items() if is_secret(name)]
        return [*found, *(secret for value in self.properties.values() for secret in secrets_of(value))]


def import_delta() -> Any:
    """Return the package ``deltalake``; the error has the fix if it is missing."""
    return import_extra("Delta needs", "delta", "deltalake", "deltalake.exceptions")


def import_iceberg() -> Any:
    """Return the package ``pyiceberg``; the error has the fix if it is missing."""
    # pyiceberg_core has the transforms of partitions.
    return import_extra("Iceberg needs", "iceberg", "pyiceberg", "pyiceberg.catalog", "pyiceberg_core")
