"""A log of numbered objects: each write is a put-if-absent of the next number.

The storage decides which writer gets a number, so two writers never both succeed with the write after
number N. An object contains its log and its number, a nonce by which its writer recognises it when the
answer was lost, and a checksum.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgpack
import xxhash

from millwheel.errors import StoreError
from millwheel.objects import Objects, Unanswered

_MAGIC = b"MWL1"
_PLAIN, _ZLIB = 0, 1
_COMPRESSED = 512  # bytes: less is not worth it
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between retries of a request
_AHEAD = 16  # objects that are fetched in parallel
_HEADER = 4096  # bytes: enough for most headers

Puts = Sequence[tuple[bytes, bytes]]


def damaged(name: str, what: str) -> StoreError:
    """The error for an object that is not what was written."""
    return StoreError(
        f"the object {name} is damaged: {what}. Restore it from a version or a backup of the bucket; nothing "
        "after it is read"
    )


@dataclass(frozen=True)
class Change:
    """The content of one write: deletes, then puts."""

    number: int
    nonce: bytes
    touched: list[bytes]
    """The prefixes of its keys."""
    codec: int
    body: bytes

    @cached_property
    def _contents(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        data = zlib.decompress(self.body) if self.codec == _ZLIB else self.body
        deletes, keys, values = msgpack.unpackb(data)
        return deletes, keys, values

    @property
    def deletes(self) -> list[bytes]:
        """The deleted keys."""
        return self._contents[0]

    @property
    def puts(self) -> list[tuple[bytes, bytes]]:
        """The entries written."""
        return list(zip(self._contents[1], self._contents[2], strict=True))


@dataclass(frozen=True)
class Payload:
    """A write to be sent: its nonce, and its content, encoded once for all retries."""

    nonce: bytes
    touched: list[bytes]
    codec: int
    body: bytes

    @classmethod
    def of(cls, puts: Puts, deletes: Iterable[bytes], width: int) -> Payload:
        """Encodes a write; ``width`` bytes of each key are its range."""
        gone = list(deletes)
        keys, values = zip(*puts, strict=True) if puts else ((), ())
        touched = {key[:width] for key in keys}
        touched.update(key[:width] for key in gone)
        data: bytes = msgpack.packb((gone, keys, values))
        codec = _PLAIN
        if len(data) >= _COMPRESSED:
            data, codec = zlib.compress(data, 1), _ZLIB
        return cls(uuid.uuid4().bytes, sorted(touched), codec, data)


class Log:
    """The objects ``folder/log/NUMBER`` of a store."""

    def __init__(
        self,
        objects: Objects,
        store: str,
        folder: str,
        *,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.objects = objects
        self.folder = folder
        self._place = f"{store}/{folder}"
        self._patience = patience
        self._clock = clock
        self._pause = pause
        self._pool: ThreadPoolExecutor | None = None

    def name(self, number: int) -> str:
        """The name of an object: numbers sort as text."""
        return f"{self.folder}/log/{number:020d}"

    def append(self, number: int, payload: Payload) -> Change | None:
        """Creates the object of a number; None: it is ours. Otherwise the existing one.

        If the answer is lost the object is read: the nonce identifies its writer.
        """
        header = [
            self._place,
            number,
            payload.nonce,
            payload.touched,
            payload.codec,
            xxhash.xxh3_128_digest(payload.body),
        ]
        data = _framed(header) + payload.body
        end = self._clock() + self._patience
        for attempt in range(1 << 30):
            lost: Unanswered | None = None
            try:
                if self.objects.create(self.name(number), data):
                    return None
                found = self.read(number)
            except Unanswered as error:
                found, lost = None, error
            if found is not None:
                return None if found.nonce == payload.nonce else found
            if self._clock() > end:
                raise lost or self._half_made(number)
            self._pause(_PAUSES[min(attempt, len(_PAUSES) - 1)])
        raise AssertionError

    def _half_made(self, number: int) -> StoreError:
        return StoreError(
            f"{self._place}: the storage refuses to create {self.name(number)}, as it exists, and does not "
            f"have it when it is read, for {self._patience:g} seconds. A server that was killed in a write "
            "can leave this behind. Remove the object with the server's own tools, and run again: the write "
            "was never answered"
        )

    def read(self, number: int) -> Change | None:
        """The write of a number; None: it does not exist."""
        data = self.objects.get(self.name(number))
        return None if data is None else self._decode(number, data)

    def touched(self, number: int) -> list[bytes] | None:
        """The prefixes of a write's keys, from its header; None: it was removed."""
        name = self.name(number)
        data = self.objects.get(name, length=_HEADER)
        if data is None:
            return None
        header, _ = _unframed(name, data, complete=False)
        if header is None:
            found = self.read(number)
            return None if found is None else found.touched
        touched: list[bytes] = header[3]
        return touched

    def behind(self, number: int) -> Iterable[Change]:
        """The existing writes after a number, in order; fetched in parallel."""
        count = 1
        while True:
            numbers = range(number + 1, number + 1 + count)
            for found in self.each(self.read, numbers):
                if found is None:
                    return
                yield found
            number += count
            count = min(4 * count, _AHEAD)

    def touched_between(self, first: int, last: int) -> set[bytes] | None:
        """The key prefixes of writes from one number to another; None: one was removed."""
        found: set[bytes] = set()
        for part in self.each(self.touched, range(first, last + 1)):
            if part is None:
                return None
            found.update(part)
        return found

    def each(self, get: Callable[[int], Any], numbers: Sequence[int]) -> Iterable[Any]:
        """Gets objects by number, in parallel."""
        if len(numbers) <= 1:
            return map(get, numbers)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AHEAD, thread_name_prefix="millwheel-log")
        return self._pool.map(get, numbers)

    def close(self) -> None:
        """Ends the fetching threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _decode(self, number: int, data: bytes) -> Change:
        name = self.name(number)
        header, at = _unframed(name, data, complete=True)
        assert header is not None
        place, own, nonce, touched, codec, checksum = header
        if (place, own) != (self._place, number):
            raise damaged(name, f"it is number {own} of {place}, not {number} of {self._place}")
        body = data[at:]
        if xxhash.xxh3_128_digest(body) != checksum:
            raise damaged(name, "its checksum is wrong")
        return Change(number, nonce, touched, codec, body)


def _framed(header: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(header)
    size = len(packed).to_bytes(4, "big")
    checksum: bytes = xxhash.xxh3_64_digest(packed)
    return _MAGIC + size + checksum + packed


def _unframed(name: str, data: bytes, *, complete: bool) -> tuple[list[Any] | None, int]:
    """The header of an object, and the offset of its body; None: read more of it."""
    if data[:4] != _MAGIC:
        raise damaged(name, "it does not begin like an object of a log")
    end = 16 + int.from_bytes(data[4:8], "big")
    if len(data) < end:
        if complete:
            raise damaged(name, "its end is missing")
        return None, end
    packed = data[16:end]
    if xxhash.xxh3_64_digest(packed) != data[8:16]:
        raise damaged(name, "the checksum of its header is wrong")
    header: list[Any] = msgpack.unpackb(packed)
    return header, end
