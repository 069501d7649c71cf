"""The statements of a shard's table."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.store.base import Range
from millwheel.store.keyspace import TIMER_SUFFIX
from millwheel.store.postgres import row_runs
from millwheel.store.postgres.sessions import ByteArray
from millwheel.store.postgres.timer_bundles import BUNDLE_KEY

PAGE = 8 << 20  # bytes of rows in one answer
_KIND = 5  # bytes: a group without its time
_BEHIND = f"'\\x{'ff' * BUNDLE_KEY}'::bytea"  # after all bundles with a prefix

_RANGE = "SELECT key, value FROM {table} WHERE key >= {start} AND key < {stop}"

# A number of entries of a range, but no more once they exceed the bytes of a page.
_READ_PAGE = f"""
    SELECT key, value FROM (
        SELECT key, value, coalesce(
            sum(octet_length(value)) OVER (ORDER BY key ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0
        ) AS before
        FROM ({_RANGE} ORDER BY key LIMIT {{rows}}) AS entries
    ) AS sized WHERE before < {PAGE}
"""

# A number of bundles of a range, but no further group once that many marks were read.
_READ_BUNDLES = f"""
    SELECT key, value FROM (
        SELECT key, value, coalesce(
            sum(get_byte(value, 0) * 256 + get_byte(value, 1)) OVER (
                ORDER BY substr(key, 1, {TIMER_SUFFIX}) GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0
        ) AS before
        FROM ({_RANGE} AND octet_length(key) = {BUNDLE_KEY} ORDER BY key LIMIT {{rows}}) AS bundles
    ) AS counted WHERE before < {{rows}}
"""


_BEGINNING = "SELECT key, value FROM {{table}} WHERE key >= {0} AND key < {0} || " + _BEHIND

# The bundles of the groups in $2, which have the prefixes in $1: kinds without bundles are skipped.
_READ_GROUPS = f"""
    WITH bundled AS MATERIALIZED (
        SELECT start FROM unnest($1::bytea[]) AS given (start)
        WHERE (SELECT count(*) FROM ({_BEGINNING.format("given.start")} LIMIT 1) AS first) > 0
    )
    SELECT p.key, p.value FROM unnest($2::bytea[]) AS g (start)
    CROSS JOIN LATERAL ({_BEGINNING.format("g.start")}) AS p
    WHERE substr(g.start, 1, {_KIND}) IN (SELECT start FROM bundled)
"""


class Queries:
    """The statements of one table; ``packed``: it has bundles of marks, and runs."""

    def __init__(self, table: str, *, packed: bool) -> None:
        self.packed = packed
        each = {"table": table, "start": "r.start", "stop": "r.stop", "rows": "r.most"}
        self.get_each = f"SELECT key, value FROM {table} WHERE key = ANY($1)"
        self.get_placed = f"SELECT key, value, ctid FROM {table} WHERE key = ANY($1)"
        self.runs = (
            f"SELECT key, octet_length(value) FROM {table} WHERE key >= '{row_runs.FIRST.decode()}' "
            f"AND key < '{row_runs.BEHIND.decode()}' AND octet_length(key) = {row_runs.KEY} ORDER BY key"
        )
        self.page = _READ_PAGE.format(table=table, start="$1", stop="$2", rows="$3::int8")
        self.pages = _of_each("r.number, ", 1, _READ_PAGE.format(**each))
        self.both = f"{self.pages} UNION ALL {_of_each('-r.number, ', 4, _READ_BUNDLES.format(**each))}"
        self.rows = _of_each("", 1, _RANGE.format(**each) + " ORDER BY key LIMIT r.most")
        self.bundles = _READ_GROUPS.format(table=table)
        self.delete = f"DELETE FROM {table} WHERE key = ANY($1)"
        given = "unnest($1::bytea[], $2::bytea[])"
        self.add = f"INSERT INTO {table} (key, value) SELECT * FROM {given}"
        self.upsert = f"{self.add} ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"
        # A shard has one writer at a time, so nothing happens between the lookup and the change; the
        # upsert locks each row before it changes it, which is written to the server's log too.
        self.merge = (
            f"MERGE INTO {table} AS known USING {given} AS given (key, value) ON known.key = given.key "
            "WHEN MATCHED THEN UPDATE SET value = given.value "
            "WHEN NOT MATCHED THEN INSERT (key, value) VALUES (given.key, given.value)"
        )
        # A row that was just read is where it was, unless it was written since: then its key is not
        # found there, and the division fails, and with it the write.
        self.replace = (
            f"WITH done AS (UPDATE {table} AS known SET value = given.value "
            "FROM unnest($1::bytea[], $2::bytea[], $3::tid[]) AS given (key, value, place) "
            "WHERE known.ctid = given.place AND known.key = given.key RETURNING 1) "
            "SELECT 1 / (count(*) = $4::int8)::int FROM done"
        )


def _of_each(number: str, first: int, read: str) -> str:
    """A statement that reads each of the ranges in three parameters."""
    given = f"unnest(${first}::bytea[], ${first + 1}::bytea[], ${first + 2}::int8[])"
    return (
        f"SELECT {number}p.key, p.value FROM {given} WITH ORDINALITY AS r (start, stop, most, number) "
        f"CROSS JOIN LATERAL ({read}) AS p"
    )


def arrays(ranges: Sequence[Range]) -> tuple[ByteArray, ByteArray, list[int]]:
    """Ranges as the parameters of a statement."""
    starts, stops, most = zip(*ranges, strict=True) if ranges else ((), (), ())
    return ByteArray(starts), ByteArray(stops), list(most)


def groups_of(starts: Sequence[bytes]) -> tuple[ByteArray, ByteArray]:
    """Groups as the parameters of a statement."""
    return ByteArray(sorted({start[:_KIND] for start in starts})), ByteArray(starts)
