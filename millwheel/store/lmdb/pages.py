"""The pages of an LMDB file (format 1, 64 bits), read without LMDB.

LMDB maps its file into memory and trusts its content: a damaged page gives wrong answers, an assertion or
SIGBUS. So a file is read here first, with plain reads.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from millwheel.errors import StoreError

HEADER = struct.Struct("<QHHHH")  # page number, padding, flags, lower, upper
_MAGIC = 0xBEEFC0DE
_META = 8  # the flag of a meta page
_META_BODY = struct.Struct("<II8xQ" + "IHHQQQQQ" * 2 + "QQ")
_META_BYTES = HEADER.size + _META_BODY.size
_PAGE_SIZE = struct.Struct("<I")
NO_ROOT = (1 << 64) - 1


class Tree(NamedTuple):
    """A meta page's data of one of its two maps: the free pages, and the entries."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class Meta(NamedTuple):
    """A meta page: one state of the file, at the end of a transaction."""

    map_size: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int

    @property
    def page_size(self) -> int:
        """The bytes of a page."""
        return self.free.pad


class Damaged(StoreError):
    """A file is not what was written; the message names it and what to do."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"the store {path.parent.parent} is damaged: in {path.parent.name}/{path.name} {what}. Restore "
            "the whole folder from a backup, or remove it and start again; do not replace single files"
        )


class Head(NamedTuple):
    """Both meta pages of a file; the newer one counts."""

    metas: tuple[Meta, Meta]

    @property
    def newest(self) -> Meta:
        """The state after the last transaction."""
        return max(self.metas, key=lambda meta: meta.transaction)


def read_head(path: Path) -> Head:
    """The meta pages of a file; `Damaged` if LMDB cannot have written them."""
    with open(path, "rb") as file:
        return head_of(path, file.fileno())


def head_of(path: Path, file: int) -> Head:
    """Like `read_head`, for an open file.

    Both pages may be written meanwhile: what looks damaged is read again until it no longer changes.
    """
    seen = None
    while True:
        first = os.pread(file, _META_BYTES, 0)
        size = _PAGE_SIZE.unpack_from(first, HEADER.size + 24)[0] if len(first) == _META_BYTES else 0
        found = (first, os.pread(file, _META_BYTES, min(size, 65536)))
        try:
            return _head(path, *found)
        except Damaged:
            if found == seen:
                raise
        seen = found


def _head(path: Path, *pages: bytes) -> Head:
    first, second = (_meta(path, data, number) for number, data in enumerate(pages))
    if first.page_size != second.page_size:
        raise Damaged(path, "the two meta pages name different sizes of pages")
    numbers = (first.transaction, second.transaction)
    if numbers != (0, 0) and (numbers[0] % 2, numbers[1] % 2, abs(numbers[0] - numbers[1])) != (0, 1, 1):
        raise Damaged(path, f"the meta pages are of transactions {numbers[0]} and {numbers[1]}")
    return Head((first, second))


def _meta(path: Path, data: bytes, number: int) -> Meta:
    if len(data) < _META_BYTES:
        raise Damaged(path, f"meta page {number} is missing: the file was cut off")
    own, _, flags, _, _ = HEADER.unpack_from(data)
    magic, version, map_size, *rest = _META_BODY.unpack_from(data, HEADER.size)
    meta = Meta(map_size, Tree(*rest[:8]), Tree(*rest[8:16]), *rest[16:])
    size = meta.page_size
    if (own, flags, magic, version) != (number, _META, _MAGIC, 1):
        raise Damaged(path, f"meta page {number} is not one")
    if size & (size - 1) or not 512 <= size <= 65536:
        raise Damaged(path, f"meta page {number} names pages of {size} bytes")
    return meta


def renumber(path: Path, transaction: int) -> None:
    """Sets the transaction number of a file that no process has open, durably."""
    head = read_head(path)
    newest = head.newest
    trees = (*newest.free, *newest.main)
    with open(path, "r+b") as file:
        for meta in (transaction, transaction - 1):
            page = meta % 2
            body = _META_BODY.pack(_MAGIC, 1, newest.map_size, *trees, newest.last_page, max(meta, 0))
            file.seek(page * newest.page_size)
            file.write(HEADER.pack(page, 0, _META, 0, 0) + body)
        file.flush()
        os.fsync(file.fileno())
