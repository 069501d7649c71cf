"""Packed files: gzip, bzip2, zstd and snappy, by the suffix of their names."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from typing import IO, Any, cast

from millwheel.errors import InputError
from millwheel.model.extras import import_extra

ENDS = (".gz", ".bz2", ".zst", ".snappy")


class Damaged(OSError):
    """A packed file is truncated or damaged, in any format."""


class CutShort(Damaged):
    """A packed file ends in the middle of a stream, as while it is being written."""


DAMAGES = (EOFError, zlib.error, gzip.BadGzipFile, Damaged)
"""The exceptions for packed files that are truncated, damaged, or not packed."""


def is_packed(path: str) -> bool:
    """Whether a file is packed, by its name.

    >>> is_packed("a.jsonl.zst"), is_packed("a.jsonl")
    (True, False)
    """
    return path.endswith(ENDS)


def stem(path: str) -> str:
    """Return a name without the suffix of its compression.

    >>> stem("a.csv.bz2")
    'a.csv'
    """
    return next((path.removesuffix(end) for end in ENDS if path.endswith(end)), path)


def unpacked(path: str, plain: IO[bytes]) -> IO[bytes]:
    """Return a file with the unpacked content of another one."""
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=plain))
    if path.endswith(".bz2"):
        return cast(IO[bytes], _Unpacker(plain, _Bzip2()))
    if path.endswith(".zst"):
        return cast(IO[bytes], _Unpacker(plain, _Zstd()))
    return cast(IO[bytes], _Unpacker(plain, _Snappy()))


class _Unpacker(io.RawIOBase):
    """Unpacks a stream piece by piece; returns all it can before it raises."""

    def __init__(self, plain: IO[bytes], unpacker: Any) -> None:
        self._plain = plain
        self._unpacker = unpacker
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._plain.read(1 << 16)
            if not data:
                self._ready = self._unpacker.end()
                break
            self._ready = self._unpacker.unpack(data)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def read1(self, size: int) -> bytes:
        """Return at most ``size`` bytes, as soon as there are any."""
        return self.read(size) or b""


class _Streams:
    """Concatenated streams of one format, as from appends to packed files."""

    def __init__(self) -> None:
        self._stream: Any = None

    def _new(self) -> Any:
        raise NotImplementedError

    def unpack(self, data: bytes) -> bytes:
        found = []
        while data:
            if self._stream is None or self._stream.eof:
                self._stream = self._new()
            try:
                found.append(self._stream.decompress(data))
            except (OSError, ValueError, _zstd_error()) as error:
                if found and any(found):
                    self._stream = _Broken(error)
                    break
                raise Damaged(f"it is damaged, or in another format: {error}") from error
            data = self._stream.unused_data if self._stream.eof else b""
        return b"".join(found)

    def end(self) -> bytes:
        if self._stream is not None and not self._stream.eof:
            raise CutShort("it ends in the middle of a packed stream")
        return b""


class _Broken:
    """A stream that has failed, and fails again when it is read."""

    eof = False

    def __init__(self, error: Exception) -> None:
        self._error = error

    def decompress(self, data: bytes) -> bytes:
        raise Damaged(f"it is damaged: {self._error}")


class _Bzip2(_Streams):
    def _new(self) -> Any:
        return bz2.BZ2Decompressor()


class _Zstd(_Streams):
    def __init__(self) -> None:
        super().__init__()
        _import("zstandard", "zstd")

    def _new(self) -> Any:
        return _import("zstandard", "zstd").ZstdDecompressor().decompressobj()


class _Snappy:
    """Snappy's framing format; unpacked as a whole."""

    def __init__(self) -> None:
        self._snappy = _import("cramjam", "snappy").snappy
        self._packed: list[bytes] = []

    def unpack(self, data: bytes) -> bytes:
        self._packed.append(data)
        return b""

    def end(self) -> bytes:
        packed, self._packed = b"".join(self._packed), []
        try:
            return bytes(self._snappy.decompress(packed)) if packed else b""
        except Exception as error:
            raise Damaged(f"it is damaged, or in another format: {error}") from error


def _zstd_error() -> Any:
    try:
        import zstandard
    except ImportError:
        return OSError
    return zstandard.ZstdError


def _import(package: str, name: str) -> Any:
    return import_extra(f"files packed with {name} need", name, package, error=InputError)
