"""A stream of Structured Streaming: rows up to a number that stands in a file.

It is a data source in Python, and with Spark 3.5, which has none, the source of JSON files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SCHEMA = "n long, k string, t long"


def set_count(path: Path, count: int) -> None:
    """From now on there are so many rows."""
    rows = _files(path)
    rows.mkdir(exist_ok=True)
    before = int(path.read_text()) if path.exists() else 0
    (rows / ".new").write_text("".join(f'{{"n": {n}}}\n' for n in range(before, count)))
    (rows / ".new").rename(rows / f"{count:09d}.json")
    staged = path.with_suffix(".new")
    staged.write_text(str(count))
    staged.replace(path)


def counted(spark: SparkSession, path: Path, first: int = 0) -> DataFrame:
    """The stream of them, numbered from ``first`` on."""
    if spark.version.startswith("3."):
        rows = spark.readStream.schema("n long").json(str(_files(path)))
        return rows.selectExpr(
            f"n + {first} as n", f"concat('k', (n + {first}) % 5) as k", f"n + {first} + 1 as t"
        )
    spark.dataSource.register(_source())
    options = {"path": str(path), "first": str(first)}
    return spark.readStream.format("counted").options(**options).load()


def _files(path: Path) -> Path:
    return path.with_suffix(".rows")


def _source() -> type[Any]:
    """Classes of a function travel whole: Spark's workers need not find this module."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Span(InputPartition):
        def __init__(self, start: int, end: int) -> None:
            self.start = start
            self.end = end

    class Reader(DataSourceStreamReader):
        def __init__(self, options: Any) -> None:
            self._path = options["path"]
            self._first = int(options["first"])

        def initialOffset(self) -> dict[str, int]:
            return {"n": 0}

        def latestOffset(
            self, start: Any = None, limit: Any = None
        ) -> dict[str, int]:  # Spark 4.0 gives none
            with open(self._path) as file:
                return {"n": int(file.read())}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Span]:
            half = (start["n"] + end["n"]) // 2
            return [Span(start["n"], half), Span(half, end["n"])]

        def read(self, partition: Any) -> Iterator[tuple[int, str, int]]:
            for n in range(self._first + partition.start, self._first + partition.end):
                yield n, f"k{n % 5}", n + 1

        def commit(self, end: dict[str, int]) -> None:
            pass

    class Counted(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counted"

        def schema(self) -> str:
            return SCHEMA

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Reader(self.options)

    return Counted
