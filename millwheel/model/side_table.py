"""Side tables: tables for lookups from a stream, with copies in the workers.

A side table is read by the driver as a whole, and kept in the store as a numbered version. An epoch's plan
names the version that its records get, so a retry gets the same rows even if the table has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from millwheel.errors import InputError, PipelineError, shorten
from millwheel.model.codec import pack, unpack
from millwheel.model.keys import field_of
from millwheel.model.plain_values import plain_value

Missing = Literal["keep", "drop"]
Key = str | tuple[str, ...]


class Rows(NamedTuple):
    """The content of a side table: its columns, if known, and its rows."""

    columns: Sequence[str]
    rows: Iterable[Mapping[str, Any]]


class SideTable:
    """A table of which the driver reads all rows, at the start and at every refresh."""

    def read(self) -> Rows:
        """Return all rows as they are now."""
        raise NotImplementedError(f"{type(self).__name__} has no read()")

    def token(self) -> Any:
        """Return a value that changes with the table, such as its version.

        If it is the same, the table is not read again. None, the default: it is always read.
        """
        return None


class GivenRows(SideTable):
    """Rows as given, or from a function that is called at every refresh."""

    def __init__(self, given: Iterable[Mapping[str, Any]] | Callable[[], Any]) -> None:
        self._given = given if callable(given) else list(given)

    def __repr__(self) -> str:
        if callable(self._given):
            return getattr(self._given, "__qualname__", None) or type(self._given).__name__
        return f"{len(self._given)} rows"

    def read(self) -> Rows:
        found = self._given() if callable(self._given) else self._given
        return found if isinstance(found, Rows) else rows_of(found)


class FrameTable(SideTable):
    """A Spark DataFrame, computed again at every refresh."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __repr__(self) -> str:
        return f"DataFrame({', '.join(self._frame.columns)[:60]})"

    def read(self) -> Rows:
        rows = (row.asDict(recursive=True) for row in self._frame.collect())
        return Rows(list(self._frame.columns), rows)


def is_frame(value: Any) -> bool:
    """Whether a value is a DataFrame of Spark, classic or Connect."""
    return type(value).__name__ == "DataFrame" and type(value).__module__.startswith("pyspark.sql")


def rows_of(value: Any) -> Rows:
    """Return rows given as dicts, an Arrow table, or a DataFrame."""
    if is_frame(value):
        return FrameTable(value).read()
    if hasattr(value, "to_pylist") and hasattr(value, "column_names"):
        return Rows(list(value.column_names), value.to_pylist())
    if isinstance(value, Mapping | str | bytes) or not isinstance(value, Iterable):
        raise InputError(f"rows are a list of dicts, not {shorten(value, 60)}")
    return Rows((), value)


class HeldTable:
    """A side table in a pipeline. The workers get all of it except its reader."""

    def __init__(
        self, name: str, table: SideTable | None, columns: Sequence[str], refresh: int | None
    ) -> None:
        self.name = name
        self.table = table
        self.on = tuple(columns)
        """The columns of the key."""
        self.refresh = refresh

    def __repr__(self) -> str:
        return f"{self.name} ({self.table!r})" if self.table is not None else self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return HeldTable, (self.name, None, self.on, self.refresh)

    def read(self) -> Contents:
        """Return the current table; an `InputError` if it cannot be used."""
        given, rows = self._asked(_read_all)
        columns = list(given.columns) or list(dict.fromkeys(name for row in rows for name in row))
        lacking = [name for name in self.on if name not in columns]
        if lacking and (rows or columns):
            raise self._error(f"has no column {lacking[0]!r}, which on= names; it has {', '.join(columns)}")
        lists = [[plain_value(row.get(name)) for name in columns] for row in rows]
        contents = Contents(columns, lists)
        try:
            pack(lists)
        except Exception as error:
            raise self._error(f"has a value that cannot be encoded ({error})") from error
        try:
            contents.index(self.on)
        except _NotUnique as error:
            raise self._error(
                f"has two rows for {', '.join(self.on)} = {error}: merge them, or name more columns in on="
            ) from None
        except TypeError as error:
            raise self._error(str(error)) from None
        return contents

    def token(self) -> Any:
        """Return a value that changes with the table; may raise an `InputError`."""
        return self._asked(lambda table: table.token())

    def _asked(self, ask: Callable[[SideTable], Any]) -> Any:
        assert self.table is not None
        try:
            return ask(self.table)
        except Exception as error:
            raise self._error(f"cannot be read ({_text(error)}): restore it, and run again") from error

    def _error(self, what: str) -> InputError:
        return InputError(f"lookup {self.name!r}: the table {self.table!r} {what}")


def _read_all(table: SideTable) -> tuple[Rows, list[dict[str, Any]]]:
    given = table.read()
    return given, [dict(row) for row in given.rows]


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}".strip()


class _NotUnique(Exception):
    """Two rows have one key."""


@dataclass
class Contents:
    """One version of a side table."""

    columns: list[str]
    rows: list[list[Any]]

    def index(self, on: Sequence[str]) -> dict[Key, dict[str, Any]]:
        """Return the rows by key, without key columns; a row with None in it has no key."""
        if not self.rows:
            return {}
        places = [self.columns.index(name) for name in on]
        rest = [(name, place) for place, name in enumerate(self.columns) if place not in places]
        found: dict[Key, dict[str, Any]] = {}
        for row in self.rows:
            key = key_of([row[place] for place in places], on)
            if key is None:
                continue
            if key in found:
                raise _NotUnique(shorten(key, 60))
            found[key] = {name: row[place] for name, place in rest}
        return found


def key_of(values: Sequence[Any], names: Sequence[str]) -> Key | None:
    """Return the key of a row; None if a part of it is None, which equals nothing.

    >>> key_of([7], ["id"]), key_of(["7"], ["id"]), key_of(["de", None], ["country", "city"])
    ('7', '7', None)
    """
    texts = []
    for name, value in zip(names, values, strict=True):
        if value is None:
            return None
        if type(value) is not int and not isinstance(value, str):
            raise TypeError(f"{name!r} is {shorten(value, 60)}: a lookup's key is made of texts and integers")
        texts.append(str(value))
    return texts[0] if len(texts) == 1 else tuple(texts)


class Loaded:
    """A version of a side table in a worker."""

    def __init__(self, contents: Contents, on: Sequence[str]) -> None:
        self.by_key = contents.index(on)
        self.columns = [name for name in contents.columns if name not in on]
        self.nested = any(isinstance(value, list | dict) for row in contents.rows for value in row)
        """Whether a row has mutable parts: then each record gets a copy."""


DROPPED: Final = object()
"""The result for a record without a row that is to be dropped."""


class Lookup:
    """Adds the row of a side table to a value, of the version in the plan."""

    def __init__(
        self,
        table: HeldTable,
        fields: Sequence[str],
        missing: Missing,
        columns: Sequence[str] | None,
        into: str | None,
    ) -> None:
        self.table = table
        self._fields = tuple(fields)
        self._missing = missing
        self._columns = None if columns is None else tuple(columns)
        self._into = into

    def __repr__(self) -> str:
        return f"lookup {self.table.name!r}"

    def __call__(self, value: Any) -> Any:
        raise PipelineError(f"{self!r} was called without a version of its table")

    def of(self, loaded: Loaded) -> Callable[[Any], Any]:
        """Return the function of a value for one version of the table."""
        columns = loaded.columns if self._columns is None else self._columns
        lacking = [name for name in columns if name not in loaded.columns]
        if lacking and loaded.columns:
            raise InputError(
                f"{self!r}: the table has no column {lacking[0]!r}, which columns= names; it has "
                f"{', '.join(loaded.columns)}"
            )
        nothing = dict.fromkeys(columns)
        get, nested, chosen = loaded.by_key.get, loaded.nested, self._columns is not None

        def enrich(value: Any) -> Any:
            if not isinstance(value, dict):
                raise TypeError(f"a value that is looked up is a dict, not a {type(value).__name__}")
            key = key_of([field_of(value, field) for field in self._fields], self._fields)
            row = None if key is None else get(key)
            if row is None:
                if self._missing == "drop":
                    return DROPPED
                return self._joined(value, None if self._into is not None else nothing)
            if chosen:
                row = {name: row.get(name) for name in columns}
            return self._joined(value, unpack(pack(row)) if nested else row)

        return enrich

    def _joined(self, value: dict[str, Any], row: dict[str, Any] | None) -> dict[str, Any]:
        if self._into is not None:
            if self._into in value:
                raise ValueError(f"the value has a field {self._into!r} already: give into= another name")
            return {**value, self._into: None if row is None else dict(row)}
        assert row is not None
        both = row.keys() & value.keys()
        if both:
            raise ValueError(
                f"the value and the table both have {', '.join(sorted(both))}: choose columns=[...], or "
                'have the row in a field of its own with into="..."'
            )
        return {**value, **row}
