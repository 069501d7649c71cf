"""Object storage: S3, Google Cloud Storage, Azure, or a folder, opened by URL.

    s3://bucket/prefix     gs://bucket/prefix     az://container/prefix     file:///folder

`open_objects` returns an `Objects`: named byte strings below the prefix. Credentials come from the
environment (``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME`` ...) or
from the role of the machine. ``endpoint`` and ``region`` may be in the URL, after a question mark: they are
not secret, and every process that gets the URL has them.

Every error of the client becomes a `MillWheelError` with advice: see `explained`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from millwheel.disk import sync_folder
from millwheel.errors import MillWheelError, StoreError
from millwheel.model.secrets import hide, secrets_of, without_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "file")
"""The URL schemes of `open_objects`."""
PATIENCE = 60.0
"""Seconds to wait for a server: a restart, or a time in which it is overloaded."""
_OURS = ("endpoint", "region")
_PART = ".part-"  # in the name of a file that is being written
_ABANDONED = 24 * 3600.0  # seconds: no write takes that long, whatever the clocks of two hosts differ by
_UNANSWERED = (
    "error sending request",
    "timed out",
    "timeout",
    "connection",
    "status code: 5",
    "409 conflict",
)


class Unanswered(StoreError):
    """A request was cut off, or failed in the server: its result is unknown."""


@dataclass(frozen=True)
class Entry:
    """An object in a list: its name, its size, and its time by the server's clock."""

    name: str
    size: int
    modified: float


class Objects(Protocol):
    """Named byte strings, relative to the prefix; an object is complete or absent."""

    @property
    def name(self) -> str:
        """The URL for display."""

    def create(self, name: str, data: bytes) -> bool:
        """Writes an object if there is none of that name; False: it exists.

        Raises `Unanswered` if the result is unknown; read it then.
        """

    def put(self, name: str, data: bytes) -> None:
        """Writes or replaces an object."""

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Reads an object, or ``length`` bytes from ``start``; None: it does not exist."""

    def list(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        """Lists objects of a folder by name: ``most`` of them, after the name ``after``."""

    def delete(self, names: Sequence[str]) -> None:
        """Removes objects; a missing one is not an error."""


def is_object_url(text: str) -> bool:
    """Whether a text is a URL of object storage.

    >>> is_object_url("s3://bucket/prefix"), is_object_url("/folder")
    (True, False)
    """
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme in SCHEMES


def open_objects(
    url: str, *, patience: float = PATIENCE, error: type[MillWheelError] = StoreError
) -> Objects:
    """Opens object storage by its URL, without a request. Failures raise ``error``."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.strip("/"):
            raise error(f"{url} names no folder: write file:///folder, with three slashes")
        return Folder(Path(unquote(parts.path)), error=error)
    return Bucket(url, patience=patience, error=error)


def open_client(
    url: str, *, patience: float = PATIENCE, error: type[MillWheelError] = StoreError
) -> ObjectStore:
    """Opens the ``obstore`` client for a URL; its names are below the prefix.

    Call them inside `explained`, so that their errors have advice.
    """
    try:
        from obstore.store import from_url
    except ImportError as missing:
        raise error(
            f"{without_secrets(url)} needs obstore, which cannot be imported ({missing}): "
            "pip install 'millwheel-spark[object]'"
        ) from missing
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise error(f"there is no object storage for {parts.scheme}://: use one of {', '.join(SCHEMES)}")
    if not parts.netloc and parts.scheme != "file":
        raise error(f"{url} names no bucket: write {parts.scheme}://bucket/prefix")
    given = dict(parse_qsl(parts.query))
    unknown = sorted(set(given).difference(_OURS))
    if unknown:
        raise error(
            f"{without_secrets(url)}: there is no parameter {unknown[0]}, only endpoint and region; "
            "credentials come from the environment"
        )
    config: dict[str, Any] = dict(given)
    options: Any = {"timeout": timedelta(seconds=max(patience, 30.0))}
    if given.get("endpoint", "").startswith("http://"):
        options["allow_http"] = True
    retries: Any = {
        "max_retries": 100,  # the patience decides
        "retry_timeout": timedelta(seconds=patience),
        "backoff": {
            "init_backoff": timedelta(milliseconds=50),
            "max_backoff": timedelta(seconds=2),
            "base": 2,
        },
    }
    if parts.scheme == "gs" and "endpoint" in config:
        config["base_url"] = config.pop("endpoint")
    with explained(url, error):
        opened: ObjectStore = from_url(
            parts._replace(query="", fragment="").geturl(),
            config=cast(Any, config or None),
            client_options=options,
            retry_config=retries,
        )
    return opened


class Bucket:
    """Objects below a prefix of a bucket, or container."""

    def __init__(
        self, url: str, *, patience: float = PATIENCE, error: type[MillWheelError] = StoreError
    ) -> None:
        self._url = url
        self._error = error
        self.client = open_client(url, patience=patience, error=error)
        """For other functions; call it inside `explained`."""
        self.name = without_secrets(url)

    def create(self, name: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with explained(self._url, self._error):
            try:
                obstore.put(self.client, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def put(self, name: str, data: bytes) -> None:
        import obstore

        with explained(self._url, self._error):
            obstore.put(self.client, name, data)

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        import obstore

        with explained(self._url, self._error):
            try:
                if length is None:
                    return bytes(obstore.get(self.client, name).bytes())[start:]
                span = (start, start + length)
                return bytes(obstore.get(self.client, name, options={"range": span}).bytes())
            except FileNotFoundError as missing:
                if "NoSuchBucket" in str(missing):
                    raise
                return None

    def list(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        import obstore

        found = []
        with explained(self._url, self._error):
            for page in obstore.list(self.client, prefix or None, offset=after or None):
                found += [Entry(one["path"], one["size"], one["last_modified"].timestamp()) for one in page]
                if most is not None and len(found) >= most:
                    break
        return sorted(found, key=lambda entry: entry.name)[:most]

    def delete(self, names: Sequence[str]) -> None:
        import obstore

        if names:
            with explained(self._url, self._error), suppress(FileNotFoundError):
                obstore.delete(self.client, list(names))


class Folder:
    """Objects as files of a folder that all hosts share; each is durable."""

    def __init__(self, path: Path, *, error: type[MillWheelError] = StoreError) -> None:
        self.path = path
        self._error = error
        self._made: set[Path] = set()
        self.name = f"file://{path}"

    def create(self, name: str, data: bytes) -> bool:
        with self._explained():
            part = self._write(name, data)
            try:
                os.link(part, self.path / name)  # atomic, and only the first one succeeds
            except FileExistsError:
                return False
            finally:
                part.unlink()
            sync_folder(part.parent)
        return True

    def put(self, name: str, data: bytes) -> None:
        with self._explained():
            part = self._write(name, data)
            os.replace(part, self.path / name)
            sync_folder(part.parent)

    def _write(self, name: str, data: bytes) -> Path:
        target = self.path / name
        if target.parent not in self._made:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._made.add(target.parent)
        part = target.with_name(f"{_PART}{uuid.uuid4().hex}")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return part

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        with self._explained():
            try:
                with open(self.path / name, "rb") as file:
                    file.seek(start)
                    return file.read(-1 if length is None else length)
            except FileNotFoundError:
                return None

    def list(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        found = []
        folder = self.path / prefix
        with self._explained():
            for base, _, names in os.walk(folder):
                for each in names:
                    path = Path(base) / each
                    name = path.relative_to(self.path).as_posix()
                    if name > after and not each.startswith(_PART):
                        with suppress(FileNotFoundError):
                            status = path.stat()
                            found.append(Entry(name, status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: entry.name)[:most]

    def remove_unfinished(self, age: float = _ABANDONED) -> int:
        """Removes old files that killed processes have left; returns their number."""
        before = time.time() - age
        found = 0
        with self._explained():
            for path in self.path.rglob(f"{_PART}*"):
                with suppress(FileNotFoundError):  # another driver removes them too
                    if path.stat().st_mtime < before:
                        path.unlink()
                        found += 1
        return found

    def delete(self, names: Sequence[str]) -> None:
        with self._explained():
            for name in names:
                (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(f"the folder {self.path} cannot be used ({error})") from error


@contextmanager
def explained(url: str, error: type[MillWheelError] = StoreError) -> Iterator[None]:
    """Turns errors of ``obstore`` into ``error``, with advice.

    If that is `StoreError`, and the result of the request is unknown, it is `Unanswered`.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError, PermissionError, ValueError) as found:
        text = str(found).partition("\n\nDebug source")[0]
        secret = [os.environ.get(name, "") for name in os.environ if _is_secret(name)]
        shown = hide(text, [*secrets_of(url), *secret])
        kind = Unanswered if error is StoreError and _is_unanswered(text) else error
        raise kind(f"{without_secrets(url)}: {_advice(text)} ({shown[:500]})") from None


def _is_secret(name: str) -> bool:
    return name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN") or (
        name.startswith("AZURE_STORAGE_") and name.endswith(("KEY", "TOKEN", "SECRET"))
    )


def _is_unanswered(text: str) -> bool:
    return any(word in text.lower() for word in _UNANSWERED) and not _is_metadata(text)


def _is_metadata(text: str) -> bool:
    """Whether the server of a machine's role was asked: there are no credentials."""
    return any(host in text for host in ("169.254.169.254", "169.254.170.", "metadata.google.internal"))


def _advice(text: str) -> str:
    """The meaning of a client's error, and the fix."""
    if _is_metadata(text):
        return (
            "there are no credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY) for "
            "the driver and the executors, or run on machines that have a role"
        )
    for words, advice in _ADVICE:
        if any(word in text for word in words):
            return advice
    if _is_unanswered(text):
        return "the server cannot be reached. Check the endpoint and the network, and run again"
    return "the object storage refused a request"


_ADVICE = (
    (("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"),
     "there is no such bucket. Create it, or correct the URL"),
    (("RequestTimeTooSkewed",),
     "the clock of this machine differs from the server's by too much. Set the clock"),
    (("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "AuthenticationFailed",
      "Unauthenticated", "lacked valid authentication"),
     "the credentials are not accepted. Correct them in the environment"),
    (("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraint", "301 Moved",
      "region"),
     "the region is not the bucket's. Set AWS_REGION, or write ?region=... after the URL"),
    (("AccessDenied", "403 Forbidden", "AuthorizationPermissionMismatch", "PermissionDenied"),
     "access is denied. The credentials need the rights to list, read, write and delete objects there"),
    (("MissingAccount", "Account must be specified"),
     "no storage account is named. Set AZURE_STORAGE_ACCOUNT_NAME"),
)  # fmt: skip
