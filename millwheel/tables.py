"""A store as Spark tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from millwheel.model.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millwheel.spark.store_reader import History, Tables


def read_store(
    spark: SparkSession, store: str | os.PathLike[str], pipeline: Pipeline | None = None
) -> Tables:
    """The tables of a store, of a pipeline that runs or has stopped.

    With the pipeline, states are decoded by the codecs of its computations; without, as MessagePack or JSON.
    """
    from millwheel.spark.store_reader import read

    return read(spark, os.fspath(store), pipeline, history())


def export(spark: SparkSession, store: str, folder: str, pipeline: Pipeline | None) -> dict[str, int]:
    """Writes the tables of a store as Parquet, with Spark; the rows of each."""
    from millwheel.spark import store_reader

    return store_reader.export(spark, store, folder, pipeline, history())


def history() -> History:
    """The reader of the history tables, for Spark's package."""
    from millwheel.spark.store_reader import History
    from millwheel.watch.history_tables import SCHEMAS, small_tables

    return History(SCHEMAS, small_tables)
