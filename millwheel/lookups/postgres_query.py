"""Tables and queries of PostgreSQL as side tables."""

from __future__ import annotations

from typing import Any

from millwheel.errors import InputError, MillWheelError
from millwheel.model.extras import import_extra
from millwheel.model.secrets import hide, percent_encoded, secrets_of, without_secrets
from millwheel.model.side_table import Rows, SideTable

_LONGEST = 60  # seconds for a connection and for an answer: a refresh that hangs would never be the last


class Postgres(SideTable):
    """The rows of a table of PostgreSQL, or of a query."""

    def __init__(self, url: str, table: str | None = None, *, query: str | None = None) -> None:
        if (table is None) == (query is None):
            raise MillWheelError("lookups.Postgres takes a table or query=, one of the two")
        import_extra("Postgres needs", "postgres", "psycopg")
        try:
            self._url = percent_encoded(url)
        except ValueError as error:
            raise MillWheelError(f"Postgres({without_secrets(url)!r}): {error}") from None
        self._table = table
        self._query = query

    def __repr__(self) -> str:
        return f"Postgres({without_secrets(self._url)!r}, {self._table or self._query!r})"

    def read(self) -> Rows:
        """Return the rows, as one statement sees them."""
        import psycopg
        from psycopg import sql

        statement: Any = self._query
        if self._table is not None:
            statement = sql.SQL("SELECT * FROM {}").format(sql.Identifier(*self._table.split(".")))
        options = f"-c statement_timeout={_LONGEST}s"
        try:
            with psycopg.connect(self._url, connect_timeout=_LONGEST, options=options) as connection:
                cursor = connection.execute(statement)
                if cursor.description is None:
                    raise InputError("the query gives no rows: write a SELECT")
                columns = [column.name for column in cursor.description]
                return Rows(columns, [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()])
        except psycopg.Error as error:
            raise InputError(hide(error, secrets_of(self._url)).strip()) from None
