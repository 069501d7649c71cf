"""The checked arguments of `Stream.lookup`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from millwheel.errors import PipelineError
from millwheel.model.pipeline import Pipeline
from millwheel.model.side_table import FrameTable, GivenRows, Lookup, Missing, SideTable, is_frame
from millwheel.operators.windows import duration


class Terms(NamedTuple):
    """The arguments of a lookup."""

    on: Any
    refresh: int | None
    missing: Missing
    columns: Sequence[str] | None
    into: str | None


def make_lookup(where: str, pipeline: Pipeline, name: str, table: Any, terms: Terms) -> Lookup:
    """Return the step of a lookup; each mistake is a `PipelineError`."""
    fields, columns = _pairs(where, terms.on)
    if terms.missing not in ("keep", "drop"):
        raise PipelineError(f'{where}: missing is "keep" or "drop", not {terms.missing!r}')
    if terms.into is not None and (not isinstance(terms.into, str) or not terms.into):
        raise PipelineError(f"{where}: into is the name of a field, not {terms.into!r}")
    chosen = None if terms.columns is None else _names(f"{where}: columns", terms.columns)
    refresh = None if terms.refresh is None else duration(f"{where}: refresh", terms.refresh)
    held = pipeline.hold_table(name, table, as_side_table(where, table), columns, refresh)
    return Lookup(held, fields, terms.missing, chosen, terms.into)


def as_side_table(where: str, table: Any) -> SideTable:
    """Return the side table of rows, a function that returns them, or a DataFrame."""
    if isinstance(table, SideTable):
        return table
    if is_frame(table):
        return FrameTable(table)
    if callable(table) and not isinstance(table, type):
        return GivenRows(table)
    if isinstance(table, Iterable) and not isinstance(table, str | bytes | Mapping):
        return GivenRows(table)
    hint = ""
    if isinstance(table, str):
        hint = f"; for files write millwheel.lookups.Parquet({table!r}), for a table millwheel.lookups.Delta"
    raise PipelineError(
        f"{where} takes a table of millwheel.lookups, a DataFrame, a list of dicts or a function that gives "
        f"them, not {table!r}{hint}"
    )


def _pairs(where: str, on: Any) -> tuple[list[str], list[str]]:
    """The fields of a value, and the columns of the table that they equal."""
    if isinstance(on, str):
        on = [on]
    if isinstance(on, Mapping):
        return _names(f"{where}: on", list(on)), _names(f"{where}: on", list(on.values()))
    names = _names(f"{where}: on", on)
    return names, [name.rpartition(".")[2] for name in names]


def _names(where: str, given: Any) -> list[str]:
    found = [given] if isinstance(given, str) else given
    if isinstance(found, list | tuple) and found and all(isinstance(n, str) and n for n in found):
        return list(found)
    raise PipelineError(f"{where} takes names, such as ['user'] or {{'user': 'id'}}, not {given!r}")
