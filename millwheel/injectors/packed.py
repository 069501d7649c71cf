"""Packed files: gzip, bzip2, zstd and snappy, by the ends of their names."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from typing import IO, Any, cast

from millwheel.errors import InputError

ENDS = (".gz", ".bz2", ".zst", ".snappy")


class Damaged(OSError):
    """What a packed file that is cut short or broken raises, whatever packed it."""


DAMAGES = (EOFError, zlib.error, gzip.BadGzipFile, Damaged)
"""What tells that a packed file is cut short, broken, or none."""


def is_packed(path: str) -> bool:
    """Whether a file is packed, by its name.

    >>> is_packed("a.jsonl.zst"), is_packed("a.jsonl")
    (True, False)
    """
    return path.endswith(ENDS)


def stem(path: str) -> str:
    """Return a name without the end that says how it is packed.

    >>> stem("a.csv.bz2")
    'a.csv'
    """
    return next((path.removesuffix(end) for end in ENDS if path.endswith(end)), path)


def unpacked(path: str, plain: IO[bytes]) -> IO[bytes]:
    """Return a file that reads what is packed in another one."""
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=plain))
    if path.endswith(".bz2"):
        return cast(IO[bytes], _Unpacker(plain, _Bzip2()))
    if path.endswith(".zst"):
        return cast(IO[bytes], _Unpacker(plain, _Zstd()))
    return cast(IO[bytes], _Unpacker(plain, _Snappy()))


class _Unpacker(io.RawIOBase):
    """Unpacks a stream piece by piece; what can be unpacked is given before an error is raised."""

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
        """Return at most ``size`` bytes, as soon as there are some."""
        return self.read(size) or b""


class _Streams:
    """Streams of one format one after the other, as those who append to packed files leave them."""

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
                raise Damaged(f"it is damaged, or packed otherwise: {error}") from error
            data = self._stream.unused_data if self._stream.eof else b""
        return b"".join(found)

    def end(self) -> bytes:
        if self._stream is not None and not self._stream.eof:
            raise Damaged("it ends in the middle of what is packed")
        return b""


class _Broken:
    """A stream that has failed, and does so when it is asked again."""

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
    """Snappy's own framing; it is unpacked when it is there as a whole."""

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
            raise Damaged(f"it is damaged, or packed otherwise: {error}") from error


def _zstd_error() -> Any:
    try:
        import zstandard
    except ImportError:
        return OSError
    return zstandard.ZstdError


def _import(package: str, name: str) -> Any:
    try:
        return __import__(package)
    except ImportError as error:
        raise InputError(
            f"files packed with {name} need {package}, which cannot be imported ({error}): "
            f"pip install 'millwheel-spark[{name}]'"
        ) from error
