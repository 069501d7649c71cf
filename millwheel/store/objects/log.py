"""A log of numbered objects: each is one write, made with put-if-absent under the next number.

The storage decides who has a number, so two writers never both believe that they have made the write after
number N. An object says which log and which number it is of, has a nonce by which its writer knows it again
when the answer was lost, and a checksum.
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
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds before a request is sent again
_AHEAD = 16  # objects that are fetched side by side
_HEADER = 4096  # bytes: most headers are within them

Puts = Sequence[tuple[bytes, bytes]]


def damaged(name: str, what: str) -> StoreError:
    """The error for an object that is not what was written."""
    return StoreError(
        f"the object {name} is damaged: {what}. Restore it from a version or a backup of the bucket; nothing "
        "is read beyond it"
    )


@dataclass(frozen=True)
class Change:
    """What one write does: deletes, then puts."""

    number: int
    nonce: bytes
    touched: list[bytes]
    """The beginnings of the keys it has."""
    codec: int
    body: bytes

    @cached_property
    def _contents(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        data = zlib.decompress(self.body) if self.codec == _ZLIB else self.body
        deletes, keys, values = msgpack.unpackb(data)
        return deletes, keys, values

    @property
    def deletes(self) -> list[bytes]:
        """The keys that go."""
        return self._contents[0]

    @property
    def puts(self) -> list[tuple[bytes, bytes]]:
        """The entries that come."""
        return list(zip(self._contents[1], self._contents[2], strict=True))


@dataclass(frozen=True)
class Payload:
    """A write on its way: its nonce, and what it does, encoded once however often it is tried."""

    nonce: bytes
    touched: list[bytes]
    codec: int
    body: bytes

    @classmethod
    def of(cls, puts: Puts, deletes: Iterable[bytes], width: int) -> Payload:
        """Encodes a write; ``width`` bytes of each key say which range it touches."""
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
        """Creates the object of a number; None: it is ours. Otherwise the one that has the number.

        Where the answer is lost the object is read: the nonce says whose it is.
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
            try:
                if self.objects.create(self.name(number), data):
                    return None
                found = self.read(number)
            except Unanswered:
                if self._clock() > end:
                    raise
                found = None
                self._pause(_PAUSES[min(attempt, len(_PAUSES) - 1)])
            if found is not None:
                return None if found.nonce == payload.nonce else found
        raise AssertionError

    def read(self, number: int) -> Change | None:
        """The write of a number; None: there is none."""
        data = self.objects.get(self.name(number))
        return None if data is None else self._decode(number, data)

    def touched(self, number: int) -> list[bytes] | None:
        """The beginnings of the keys that a write has, without reading it all; None: it is gone."""
        name = self.name(number)
        data = self.objects.get(name, first=_HEADER)
        if data is None:
            return None
        header, _ = _unframed(name, data, complete=False)
        if header is None:
            found = self.read(number)
            return None if found is None else found.touched
        touched: list[bytes] = header[3]
        return touched

    def behind(self, number: int) -> Iterable[Change]:
        """The writes behind a number, in order, as far as there are any; fetched side by side."""
        count = 1
        while True:
            numbers = range(number + 1, number + 1 + count)
            for found in self._each(self.read, numbers):
                if found is None:
                    return
                yield found
            number += count
            count = min(4 * count, _AHEAD)

    def touched_between(self, first: int, last: int) -> set[bytes] | None:
        """The beginnings of the keys of all writes from one to another; None: one of them is gone."""
        found: set[bytes] = set()
        for part in self._each(self.touched, range(first, last + 1)):
            if part is None:
                return None
            found.update(part)
        return found

    def _each(self, get: Callable[[int], Any], numbers: Sequence[int]) -> Iterable[Any]:
        if len(numbers) <= 1:
            return map(get, numbers)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AHEAD, thread_name_prefix="millwheel-log")
        return self._pool.map(get, numbers)

    def close(self) -> None:
        """Ends the threads that fetch."""
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
    """The header of an object, and where its body begins; None: it is longer than what was read."""
    if data[:4] != _MAGIC:
        raise damaged(name, "it does not begin as an object of a log does")
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
