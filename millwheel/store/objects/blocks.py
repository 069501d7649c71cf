"""Blocks: runs of a snapshot's entries, each read from its part by itself.

A part is an object with many blocks, one behind the other. A block has its place, the first and the last of
its keys, and a checksum, so that a copy that lacks it knows which keys it stands for.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import msgpack
import xxhash

from millwheel.errors import StoreError
from millwheel.objects import Objects
from millwheel.store.objects.log import damaged

BLOCK = 512 << 10
"""Bytes of keys and values: what one key costs to read from a part. More requests, if it were less."""
AHEAD = 16
"""Blocks that a scan reads side by side at most."""
_HOLE = 64 << 10  # bytes between two blocks of a part that are read along: faster than another request
_RUN = 4 << 20  # bytes of one request
_CACHED = 64 << 20  # bytes of blocks that a process keeps: what a step has read, the next one reads again

Entries = dict[bytes, bytes]
"""The entries of a block, in order."""


class PartGone(StoreError):
    """A part does not exist: its snapshot was removed, or the store is damaged."""

    def __init__(self, part: str) -> None:
        super().__init__(f"the object {part} was removed while a working copy needed it. Run again")
        self.part = part


@dataclass(frozen=True, slots=True)
class Block:
    """The place of entries, and their first and last key."""

    first: bytes
    last: bytes
    part: str
    offset: int
    length: int
    checksum: bytes

    def pack(self) -> bytes:
        """Encodes it as a value."""
        packed: bytes = msgpack.packb(astuple(self))
        return packed

    @staticmethod
    def unpack(data: bytes) -> Block:
        """The inverse of `pack`."""
        return Block(*msgpack.unpackb(data))


def split(entries: Sequence[tuple[bytes, bytes]], size: int) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """Splits entries into blocks of at least ``size`` bytes, but for the last one."""
    begin = found = 0
    for end, (key, value) in enumerate(entries, start=1):
        found += len(key) + len(value)
        if found >= size or end == len(entries):
            yield entries[begin:end]
            begin, found = end, 0


def encode(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Encodes the entries of a block."""
    return zlib.compress(msgpack.packb(list(zip(*entries, strict=True))), 1)


def decode(block: Block, packed: bytes) -> Entries:
    """The entries of a block, from its bytes in a part."""
    if xxhash.xxh3_128_digest(packed) != block.checksum:
        raise damaged(block.part, "the checksum of a block in it is wrong")
    keys, values = msgpack.unpackb(zlib.decompress(packed))
    return dict(zip(keys, values, strict=True))


def runs(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Blocks by request: neighbours in a part are read together."""
    run: list[Block] = []
    for block in sorted(blocks, key=lambda block: (block.part, block.offset)):
        if run and (
            run[0].part != block.part
            or block.offset - run[-1].offset - run[-1].length > _HOLE
            or block.offset + block.length - run[0].offset > _RUN
        ):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


class _Cache:
    """The blocks that this process read last, of all shards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[int, str, int], tuple[Entries, int]] = OrderedDict()
        self._held = 0

    def get(self, owner: int, block: Block) -> Entries | None:
        place = (owner, block.part, block.offset)
        with self._lock:
            if place not in self._found:
                return None
            self._found.move_to_end(place)
            return self._found[place][0]

    def put(self, owner: int, block: Block, entries: Entries) -> None:
        place = (owner, block.part, block.offset)
        size = sum(map(len, entries)) + sum(map(len, entries.values()))
        with self._lock:
            if place not in self._found:
                self._found[place] = (entries, size)
                self._held += size
            while self._held > _CACHED and len(self._found) > 1:
                self._held -= self._found.popitem(last=False)[1][1]

    def forget(self, owner: int) -> None:
        with self._lock:
            for place in [place for place in self._found if place[0] == owner]:
                self._held -= self._found.pop(place)[1]


_cache = _Cache()
_owners = itertools.count()


class Parts:
    """Reads the blocks of one log's parts; what was read last is kept until `forget`."""

    def __init__(
        self, objects: Objects, each: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
    ) -> None:
        self._objects = objects
        self._each = each
        self._owner = next(_owners)

    def fetch(self, blocks: Sequence[Block]) -> Iterator[tuple[Block, Entries]]:
        """Reads blocks, side by side; in the order of their parts. Raises `PartGone`."""
        for found in self._each(self._fetch_run, list(runs(blocks))):
            yield from found

    def _fetch_run(self, run: Sequence[Block]) -> list[tuple[Block, Entries]]:
        start = run[0].offset
        data = self._objects.get(run[0].part, start=start, length=run[-1].offset + run[-1].length - start)
        if data is None:
            raise PartGone(run[0].part)
        return [
            (block, decode(block, data[block.offset - start : block.offset - start + block.length]))
            for block in run
        ]

    def read(self, blocks: Sequence[Block]) -> list[Entries]:
        """The entries of blocks; of those that were read last, from memory."""
        found = {block: self._cached(block) for block in blocks}
        for block, entries in self.fetch([block for block, entries in found.items() if entries is None]):
            found[block] = entries
            _cache.put(self._owner, block, entries)
        return [entries for entries in map(found.get, blocks) if entries is not None]

    def _cached(self, block: Block) -> Entries | None:
        return _cache.get(self._owner, block)

    def forget(self) -> None:
        """Frees the memory of what was read last."""
        _cache.forget(self._owner)
