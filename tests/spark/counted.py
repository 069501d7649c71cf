"""A data source of Structured Streaming in Python: rows up to a number that stands in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

SCHEMA = "n long, k string, t long"


def set_count(path: Path, count: int) -> None:
    """From now on there are so many rows."""
    staged = path.with_suffix(".new")
    staged.write_text(str(count))
    staged.replace(path)


def counted(spark: SparkSession, path: Path, first: int = 0) -> DataFrame:
    """The stream of them, numbered from ``first`` on."""
    spark.dataSource.register(_source())
    options = {"path": str(path), "first": str(first)}
    return spark.readStream.format("counted").options(**options).load()


def _source() -> type[DataSource]:
    """Classes of a function travel whole: Spark's workers need not find this module."""

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

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
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
