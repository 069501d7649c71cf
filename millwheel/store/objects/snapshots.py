"""Snapshots of a log: what it adds up to, so that its older objects can go.

A snapshot is a manifest, ``folder/snapshots/NUMBER``, and the parts that it names, ``folder/parts/...``. A
part has the entries of many ranges of keys, each range by itself. Only ranges that were written since the
last snapshot are written again; for all others the manifest names the part that has them already.

The ranges are read one after the other while others write, so a later range may have writes that an earlier
one has not. That does no harm: the manifest says at which number reading began and ended, and whoever uses a
snapshot applies the log from the first number on, at least to the second. Writes have absolute values, and
applied in order they give the same whatever was there of them before.
"""

from __future__ import annotations

import uuid
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgpack
import xxhash

from millwheel.errors import StoreError
from millwheel.objects import Entry, Objects
from millwheel.store.base import Shard
from millwheel.store.keyspace import after
from millwheel.store.objects.log import Log, damaged
from millwheel.store.objects.working_copy import CopySnapshot, WorkingCopy, number_entry

_MAGIC = b"MWS1"
_PART = 32 << 20  # bytes of one object of parts: what is held in memory at a time
_CHUNK = 8 << 20  # bytes that are written to a copy in one transaction
_LIVE = 0.5  # of a part: with less in use, it is written again, so that it can go
_BEHIND = b"\xff" * 512  # behind every key


@dataclass(frozen=True)
class Place:
    """Where a range stands."""

    part: str
    offset: int
    length: int
    checksum: bytes


@dataclass
class Manifest:
    """A snapshot: where each range stands, and which numbers of the log it is of."""

    number: int
    """Reading began when the copy was at this number: the log behind it is applied to it."""
    until: int
    """Reading ended at this one: before it is applied the snapshot is not whole."""
    ranges: dict[bytes, Place] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    """The bytes of each part."""

    def to_bytes(self, place: str) -> bytes:
        """As an object."""
        ranges = {key: [p.part, p.offset, p.length, p.checksum] for key, p in self.ranges.items()}
        packed = zlib.compress(msgpack.packb([place, self.number, self.until, ranges, self.parts]), 1)
        return _MAGIC + xxhash.xxh3_128_digest(packed) + packed

    @classmethod
    def from_bytes(cls, name: str, place: str, data: bytes) -> Manifest:
        """The inverse of `to_bytes`."""
        if data[:4] != _MAGIC or xxhash.xxh3_128_digest(data[20:]) != data[4:20]:
            raise damaged(name, "its checksum is wrong")
        own, number, until, ranges, parts = msgpack.unpackb(zlib.decompress(data[20:]))
        if own != place:
            raise damaged(name, f"it is of {own}, not of {place}")
        return cls(number, until, {key: Place(*where) for key, where in ranges.items()}, parts)

    def sparse(self) -> set[bytes]:
        """The ranges in parts of which little is in use."""
        live: Counter[str] = Counter()
        for place in self.ranges.values():
            live[place.part] += place.length
        poor = {part for part, size in self.parts.items() if live[part] < _LIVE * size}
        return {key for key, place in self.ranges.items() if place.part in poor}


class Snapshots:
    """The snapshots of one log."""

    def __init__(self, objects: Objects, store: str, folder: str, width: int) -> None:
        self._objects = objects
        self._place = f"{store}/{folder}"
        self._folder = folder
        self._width = width

    def listed(self) -> list[Entry]:
        """The manifests, the oldest first."""
        return self._objects.list(f"{self._folder}/snapshots")

    def newest(self) -> int:
        """The number of the newest one; 0 where there is none."""
        found = self.listed()
        return number_in(found[-1].name) if found else 0

    def read(self, number: int) -> Manifest | None:
        """The manifest of a number; None: it is gone."""
        name = self._name(number)
        data = self._objects.get(name)
        return None if data is None else Manifest.from_bytes(name, self._place, data)

    def _name(self, number: int) -> str:
        return f"{self._folder}/snapshots/{number:020d}"

    def fill(self, shard: Shard, number: int) -> Manifest:
        """Fills an empty environment from the snapshot of a number."""
        manifest = self.read(number)
        if manifest is None:
            raise StoreError(f"{self._objects.name}: the snapshot {self._name(number)} is gone. Run again")
        wanted: dict[str, list[tuple[bytes, Place]]] = {}
        for key, place in manifest.ranges.items():
            wanted.setdefault(place.part, []).append((key, place))
        batch: list[tuple[bytes, bytes]] = []
        size = 0
        for part in sorted(wanted):
            data = self._objects.get(part)
            if data is None:
                raise damaged(part, "it is not there, and a snapshot needs it")
            for _, place in wanted[part]:
                for entry in entries_of(part, data, place):
                    batch.append(entry)
                    size += len(entry[0]) + len(entry[1])
                if size > _CHUNK:
                    shard.write(batch)
                    batch, size = [], 0
        shard.write([*batch, number_entry(manifest.number)])
        return manifest

    def take(self, copy: WorkingCopy, log: Log, *, full: bool = False) -> Manifest | None:
        """Writes a snapshot of a copy; None: there is nothing new, or another process was faster."""
        number = copy.number()
        last = self.newest()
        if number is None or number <= last:
            return None
        known = self.read(last) if last and not full else None
        dirty = log.touched_between(known.number + 1, number) if known is not None else None
        manifest = Manifest(number, number)
        writer = _Writer(self._objects, f"{self._folder}/parts/{number:020d}-{uuid.uuid4().hex[:8]}")
        if known is None or dirty is None:
            for key in _all_ranges(copy.shard, self._width):
                writer.add(key, _read_range(copy.shard, key, self._width))
        else:
            dirty |= known.sparse()
            for key in sorted(dirty):
                writer.add(key, _read_range(copy.shard, key, self._width))
            manifest.ranges = {key: place for key, place in known.ranges.items() if key not in dirty}
        writer.flush()
        manifest.ranges.update(writer.ranges)
        used = {place.part for place in manifest.ranges.values()}
        sizes = {**(known.parts if known is not None else {}), **writer.parts}
        manifest.parts = {part: size for part, size in sizes.items() if part in used}
        manifest.until = copy.number() or number
        made = self._objects.create(self._name(number), manifest.to_bytes(self._place))
        return manifest if made else None

    def clean(self, grace: float) -> int:
        """Removes what nobody needs any more; returns how many objects that were.

        A snapshot that has been there for ``grace`` seconds, by the clock of the server alone, is known to
        everybody: the log up to it, and every snapshot before it, can go. Parts that no manifest names
        may be those of a snapshot that is being written, for as long.
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
                return 0  # another process cleans up, and is further
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
        """Reads a snapshot and everything that it names; a `StoreError` says what is damaged."""
        manifest = self.read(number)
        if manifest is None:
            return
        for part in sorted(manifest.parts):
            data = self._objects.get(part)
            if data is None:
                raise damaged(part, "it is not there, and a snapshot needs it")
            for place in manifest.ranges.values():
                if place.part == part:
                    entries_of(part, data, place)


class _Writer:
    """Collects ranges into parts."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name
        self._data = bytearray()
        self.ranges: dict[bytes, Place] = {}
        self.parts: dict[str, int] = {}

    def add(self, key: bytes, entries: list[tuple[bytes, bytes]]) -> None:
        """Adds a range; one without entries is none."""
        if not entries:
            return
        data = zlib.compress(msgpack.packb(list(zip(*entries, strict=True))), 1)
        if self._data and len(self._data) + len(data) > _PART:
            self.flush()
        self.ranges[key] = Place(self._part(), len(self._data), len(data), xxhash.xxh3_128_digest(data))
        self._data += data

    def _part(self) -> str:
        return f"{self._name}-{len(self.parts):04d}"

    def flush(self) -> None:
        """Writes the ranges that have come together."""
        if self._data:
            self._objects.put(self._part(), bytes(self._data))
            self.parts[self._part()] = len(self._data)
            self._data = bytearray()


def entries_of(part: str, data: bytes, place: Place) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a range, from its part."""
    packed = data[place.offset : place.offset + place.length]
    if xxhash.xxh3_128_digest(packed) != place.checksum:
        raise damaged(part, "the checksum of a range in it is wrong")
    keys, values = msgpack.unpackb(zlib.decompress(packed))
    return zip(keys, values, strict=True)


def number_in(name: str) -> int:
    """The number at the end of an object's name."""
    return int(name.rpartition("/")[2])


def _bounds(key: bytes, width: int) -> tuple[bytes, bytes]:
    """A range: all keys that begin with ``key``, or where it is shorter than that, the key itself."""
    if len(key) < width:
        return key, key + b"\x00"
    return key, after(key) if key.strip(b"\xff") else _BEHIND


def _read_range(shard: Shard, key: bytes, width: int) -> list[tuple[bytes, bytes]]:
    """A reading for a moment: a step of this process must not wait for a snapshot."""
    with shard.snapshot() as snapshot:
        return list(CopySnapshot(snapshot).scan(*_bounds(key, width)))


def _all_ranges(shard: Shard, width: int) -> Iterator[bytes]:
    start = b""
    while True:
        with shard.snapshot() as snapshot:
            first = next(iter(CopySnapshot(snapshot).scan(start, _BEHIND)), None)
        if first is None:
            return
        key = first[0][:width]
        yield key
        start = _bounds(key, width)[1]
