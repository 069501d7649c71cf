"""PostgreSQL's logical replication messages (``pgoutput`` 1) as changes of rows.

Values come as text, and become what MessagePack carries by the type of their column: numbers, booleans and
JSON as such, moments in microseconds, bytea as bytes, all else as text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from millwheel.model.codec import pack
from millwheel.model.plain_values import plain_value

Operation = Literal["snapshot", "insert", "update", "delete", "truncate"]

_EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000, where PostgreSQL's time begins
_KEY = 1  # the flag of a column that names a row

_OPERATIONS: dict[bytes, Operation] = {b"I": "insert", b"U": "update", b"D": "delete"}

Load = Callable[[bytes], Any]
Loader = Callable[[int], Load]
"""By the number of a type: what makes a value of its text."""


class Column(NamedTuple):
    """A column as a relation message describes it."""

    name: str
    is_key: bool
    load: Load


@dataclass
class Relation:
    """A table as it was when its changes were made."""

    table: str
    columns: list[Column]
    has_primary_key: bool
    """Whether its key columns are those of its primary key (REPLICA IDENTITY DEFAULT)."""

    def key(self, primary: Sequence[str]) -> list[str]:
        """The columns that name a row: the primary key at the time of the change.

        ``primary`` is the present one.
        """
        marked = [column.name for column in self.columns if column.is_key]
        known = bool(primary) and {column.name for column in self.columns}.issuperset(primary)
        return list(primary) if known and not (self.has_primary_key and marked) else marked


@dataclass
class Change:
    """One change of one row."""

    operation: Operation
    table: str
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    unchanged: list[str] = field(default_factory=list)
    """Large values that an update left as they were, and the server does not send."""


class Transaction(NamedTuple):
    """The changes of a transaction; ``end`` is its last position."""

    id: int
    end: int
    committed: int
    changes: list[Change]


class _Reader:
    """Takes a message apart, from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        (found,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += size
        return int(found)

    def text(self) -> str:
        end = self._data.index(b"\x00", self._at)
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def mark(self) -> bytes:
        self._at += 1
        return self._data[self._at - 1 : self._at]

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]


class Decoder:
    """Groups the messages of one reading, which describes each table, by transaction.

    Changes of the tables of one schema, ``ignored``, are left out.
    """

    def __init__(self, keys: Mapping[str, Sequence[str]], loader: Loader, *, ignored: str = "") -> None:
        self._keys = keys
        self._loader = loader
        self._ignored = ignored
        self._relations: dict[int, Relation | None] = {}
        """None: of the ignored schema."""

    def transactions(self, messages: Iterable[bytes]) -> Iterator[Transaction]:
        """Yield the transactions, in the order of their commits."""
        changes: list[Change] = []
        xid = 0
        for data in messages:
            kind, reader = data[:1], _Reader(data)
            if kind == b"B":
                reader.number("q"), reader.number("q")
                xid, changes = reader.number("I"), []
            elif kind == b"R":
                self._relation(reader)
            elif kind == b"C":
                reader.number("b"), reader.number("q")
                end, committed = reader.number("q"), reader.number("q")
                yield Transaction(xid, end, committed + _EPOCH, changes)
            elif kind in (b"I", b"U", b"D"):
                changes += self._change(kind, reader)
            elif kind == b"T":
                changes += self._truncated(reader)

    def _relation(self, reader: _Reader) -> None:
        number = reader.number("I")
        schema = reader.text() or "pg_catalog"
        if schema == self._ignored:
            self._relations[number] = None
            return
        table = f"{schema}.{reader.text()}"
        has_primary_key = reader.mark() == b"d"
        columns = []
        for _ in range(reader.number("h")):
            flags, name = reader.number("b"), reader.text()
            kind, _ = reader.number("I"), reader.number("i")
            columns.append(Column(name, bool(flags & _KEY), self._loader(kind)))
        self._relations[number] = Relation(table, columns, has_primary_key)

    def _change(self, kind: bytes, reader: _Reader) -> Iterator[Change]:
        relation = self._relations[reader.number("I")]
        if relation is None:
            return
        before: dict[str, Any] | None = None
        after: dict[str, Any] | None = None
        unchanged: list[str] = []
        mark = reader.mark()
        if mark in (b"K", b"O"):
            before, _ = _row(reader, relation, only_key=mark == b"K")
            mark = reader.mark() if kind == b"U" else b""
        if mark == b"N":
            after, unchanged = _row(reader, relation)
            if before is not None:
                after |= {name: before[name] for name in unchanged if name in before}
                unchanged = [name for name in unchanged if name not in before]
        operation = _OPERATIONS[kind]
        row = after if after is not None else before
        key = {name: (row or {}).get(name) for name in relation.key(self._keys.get(relation.table, ()))}
        yield Change(operation, relation.table, key, before, after, unchanged)

    def _truncated(self, reader: _Reader) -> Iterator[Change]:
        count, _ = reader.number("I"), reader.number("b")
        for _ in range(count):
            relation = self._relations[reader.number("I")]
            if relation is not None:
                yield Change("truncate", relation.table, None, None, None)


def _row(reader: _Reader, relation: Relation, *, only_key: bool = False) -> tuple[dict[str, Any], list[str]]:
    """A row by column, and the columns whose values were not sent."""
    found: dict[str, Any] = {}
    unchanged: list[str] = []
    for column in relation.columns[: reader.number("h")]:
        mark = reader.mark()
        if mark == b"u":
            unchanged.append(column.name)
        elif mark == b"n":
            if not only_key or column.is_key:
                found[column.name] = None
        else:
            found[column.name] = column.load(reader.bytes(reader.number("i")))
    return found, unchanged


def plain_loader() -> Loader:
    """Return loaders of text to MessagePack types; other types stay text."""
    from psycopg.adapt import Transformer
    from psycopg.pq import Format

    transformer = Transformer()

    def loader(kind: int) -> Load:
        load = transformer.get_loader(kind, Format.TEXT).load

        def plain(data: bytes) -> Any:
            try:
                value = plain_value(load(data))
                pack(value)
            except Exception:  # infinity, a range, a type of the user's
                return data.decode(errors="replace")
            return value

        return plain

    return loader
