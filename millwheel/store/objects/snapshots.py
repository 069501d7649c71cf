"""Snapshots of a log: its content, so that its older objects can be removed.

A snapshot is a manifest, ``folder/snapshots/NUMBER``, and the parts that it names, ``folder/parts/...``. A
part has the entries of many ranges of keys, in blocks that are read separately. Only ranges that were written
since the last snapshot are written again; for all others the manifest names the existing blocks.

The ranges are read one after the other while others write, so a later range may have writes that an earlier
one has not. That does no harm: the manifest has the numbers at which reading began and ended, and a reader
of a snapshot applies the log from the first number on, at least to the second. Writes have absolute values,
and applied in order they give the same result even if some of them were there before.
"""

from __future__ import annotations

import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field

import msgpack
import xxhash

from millwheel.errors import StoreError
from millwheel.objects import Entry, Objects
from millwheel.store.keyspace import after
from millwheel.store.objects.blocks import BLOCK, Block, PartGone, Parts, encode, runs, split
from millwheel.store.objects.lazy_copy import LazyCopy
from millwheel.store.objects.log import Log, damaged

_MAGIC = b"MWS2"
_BEFORE_BLOCKS = b"MWS1"  # a range was one block, whose last key was not noted
_PART = 32 << 20  # bytes of one part, which is held in memory
_LIVE = 0.5  # of a part: with less in use, it is rewritten, so that it can be removed
_BEHIND = b"\xff" * 512  # after every key


@dataclass
class Manifest:
    """A snapshot: the blocks of each range, and its numbers of the log."""

    number: int
    """The copy's number when reading began: the log after it is to be applied."""
    until: int
    """The number when reading ended: without the log up to it, it is incomplete."""
    ranges: dict[bytes, list[Block]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    """By part: its size in bytes."""

    def to_bytes(self, place: str) -> bytes:
        """Encodes it as an object."""
        ranges = {key: [astuple(block) for block in blocks] for key, blocks in self.ranges.items()}
        packed = zlib.compress(msgpack.packb([place, self.number, self.until, ranges, self.parts]), 1)
        return _MAGIC + xxhash.xxh3_128_digest(packed) + packed

    @classmethod
    def from_bytes(cls, name: str, place: str, width: int, data: bytes) -> Manifest:
        """The inverse of `to_bytes`."""
        if data[:4] not in (_MAGIC, _BEFORE_BLOCKS) or xxhash.xxh3_128_digest(data[20:]) != data[4:20]:
            raise damaged(name, "its checksum is wrong")
        own, number, until, ranges, parts = msgpack.unpackb(zlib.decompress(data[20:]))
        if own != place:
            raise damaged(name, f"it is of {own}, not of {place}")
        if data[:4] == _BEFORE_BLOCKS:
            ranges = {key: [[key, _last(key, width), *block]] for key, block in ranges.items()}
        found = {key: [Block(*block) for block in blocks] for key, blocks in ranges.items()}
        return cls(number, until, found, parts)

    def blocks(self) -> list[Block]:
        """All blocks."""
        return [block for blocks in self.ranges.values() for block in blocks]

    def sparse(self) -> set[bytes]:
        """The ranges in parts that are mostly unused."""
        live: Counter[str] = Counter()
        for block in self.blocks():
            live[block.part] += block.length
        poor = {part for part, size in self.parts.items() if live[part] < _LIVE * size}
        return {key for key, blocks in self.ranges.items() if any(block.part in poor for block in blocks)}


class Snapshots:
    """The snapshots of one log."""

    def __init__(self, objects: Objects, store: str, folder: str, width: int, *, block: int = BLOCK) -> None:
        self._objects = objects
        self._place = f"{store}/{folder}"
        self._folder = folder
        self._width = width
        self.block = block

    def listed(self) -> list[Entry]:
        """The manifests, the oldest first."""
        return self._objects.list(f"{self._folder}/snapshots")

    def newest(self) -> int:
        """The number of the newest one; 0 if there is none."""
        found = self.listed()
        return number_in(found[-1].name) if found else 0

    def read(self, number: int) -> Manifest | None:
        """The manifest of a number; None: it was removed."""
        name = self._name(number)
        data = self._objects.get(name)
        return None if data is None else Manifest.from_bytes(name, self._place, self._width, data)

    def _name(self, number: int) -> str:
        return f"{self._folder}/snapshots/{number:020d}"

    def needed(self, number: int) -> Manifest:
        """The manifest of a number, for a new copy; a `StoreError` if it was removed."""
        manifest = self.read(number)
        if manifest is None:
            raise StoreError(
                f"{self._objects.name}: the snapshot {self._name(number)} was removed. Run again"
            )
        return manifest

    def take(self, copy: LazyCopy, log: Log, *, full: bool = False) -> Manifest | None:
        """Writes a snapshot of a copy; None: nothing is new, or another was faster."""
        number = copy.number()
        last = self.newest()
        if number is None or number <= last:
            return None
        known = self.read(last) if last and not full else None
        dirty = log.touched_between(known.number + 1, number) if known is not None else None
        manifest = Manifest(number, number)
        name = f"{self._folder}/parts/{number:020d}-{uuid.uuid4().hex[:8]}"
        writer = _Writer(self._objects, name, self.block)
        if known is None or dirty is None:
            for key in _all_ranges(copy, self._width):
                writer.add(key, read_range(copy, key, self._width))
        else:
            dirty |= known.sparse()
            for key in sorted(dirty):
                writer.add(key, read_range(copy, key, self._width))
            manifest.ranges = {key: blocks for key, blocks in known.ranges.items() if key not in dirty}
        writer.flush()
        manifest.ranges.update(writer.ranges)
        used = {block.part for block in manifest.blocks()}
        sizes = {**(known.parts if known is not None else {}), **writer.parts}
        manifest.parts = {part: size for part, size in sizes.items() if part in used}
        manifest.until = copy.number() or number
        made = self._objects.create(self._name(number), manifest.to_bytes(self._place))
        return manifest if made else None

    def clean(self, grace: float) -> int:
        """Removes what is no longer needed; returns the number of objects.

        A snapshot that has existed for ``grace`` seconds, by the clock of the server alone, has been seen by
        every process: the log up to it, and every snapshot before it, can be removed. Parts that no manifest
        names may belong to a snapshot that is being written, for as long.
        """
        found = self.listed()
        if not found:
            return 0
        now = found[-1].modified
        settled = [entry for entry in found if now - entry.modified >= grace]
        if not settled:
            return 0
        keep = number_in(settled[-1].name)
        gone = [entry.name for entry in settled[:-1]]
        used: set[str] = set()
        for entry in found[len(settled) - 1 :]:
            manifest = self.read(number_in(entry.name))
            if manifest is None:
                return 0  # another process cleans up, and is ahead
            used.update(manifest.parts)
        for entry in self._objects.list(f"{self._folder}/parts"):
            if entry.name not in used and now - entry.modified >= grace:
                gone.append(entry.name)
        for entry in self._objects.list(f"{self._folder}/log"):
            if number_in(entry.name) > keep:
                break
            gone.append(entry.name)
        self._objects.delete(gone)
        return len(gone)

    def verify(self, number: int) -> None:
        """Reads a snapshot and all of its parts; a `StoreError` if one is damaged."""
        manifest = self.read(number)
        if manifest is None:
            return
        for run in runs(manifest.blocks()):
            try:
                for _ in Parts(self._objects, map).fetch(run):
                    pass
            except PartGone as error:
                raise missing(error.part) from None


def missing(part: str) -> StoreError:
    """The error for a part that the newest snapshot names, and that does not exist."""
    return damaged(part, "it is missing, and a snapshot needs it")


class _Writer:
    """Collects ranges into parts, in blocks."""

    def __init__(self, objects: Objects, name: str, block: int) -> None:
        self._objects = objects
        self._name = name
        self._block = block
        self._data = bytearray()
        self.ranges: dict[bytes, list[Block]] = {}
        self.parts: dict[str, int] = {}

    def add(self, key: bytes, entries: list[tuple[bytes, bytes]]) -> None:
        """Adds a range; one without entries is left out."""
        if entries:
            self.ranges[key] = [self._add(block) for block in split(entries, self._block)]

    def _add(self, entries: Sequence[tuple[bytes, bytes]]) -> Block:
        data = encode(entries)
        if self._data and len(self._data) + len(data) > _PART:
            self.flush()
        offset, checksum = len(self._data), xxhash.xxh3_128_digest(data)
        self._data += data
        return Block(entries[0][0], entries[-1][0], self._part(), offset, len(data), checksum)

    def _part(self) -> str:
        return f"{self._name}-{len(self.parts):04d}"

    def flush(self) -> None:
        """Writes the collected blocks."""
        if self._data:
            self._objects.put(self._part(), bytes(self._data))
            self.parts[self._part()] = len(self._data)
            self._data = bytearray()


def number_in(name: str) -> int:
    """The number at the end of an object's name."""
    return int(name.rpartition("/")[2])


def _bounds(key: bytes, width: int) -> tuple[bytes, bytes]:
    """A range: all keys with the prefix ``key``, or a shorter key itself."""
    if len(key) < width:
        return key, key + b"\x00"
    return key, after(key) if key.strip(b"\xff") else _BEHIND


def _last(key: bytes, width: int) -> bytes:
    """The last key that a range may have."""
    return key if len(key) < width else key.ljust(len(_BEHIND), b"\xff")


def read_range(copy: LazyCopy, key: bytes, width: int) -> list[tuple[bytes, bytes]]:
    """Reads a range in a short snapshot: a step must not wait for it."""
    with copy.snapshot() as snapshot:
        return list(snapshot.scan(*_bounds(key, width)))


def _all_ranges(copy: LazyCopy, width: int) -> Iterator[bytes]:
    start = b""
    while True:
        with copy.snapshot() as snapshot:
            first = next(iter(snapshot.scan(start, _BEHIND)), None)
        if first is None:
            return
        key = first[0][:width]
        yield key
        start = _bounds(key, width)[1]
