"""Sinks for common kinds of output."""

from millwheel.sinks.callback import Callback
from millwheel.sinks.collect import Collect
from millwheel.sinks.delta import Delta
from millwheel.sinks.iceberg import Iceberg
from millwheel.sinks.jsonlines import JsonLines
from millwheel.sinks.kafka import Kafka
from millwheel.sinks.parquet import Parquet
from millwheel.sinks.postgres import Postgres
from millwheel.sinks.spark_table import SparkTable

__all__ = [
    "Callback",
    "Collect",
    "Delta",
    "Iceberg",
    "JsonLines",
    "Kafka",
    "Parquet",
    "Postgres",
    "SparkTable",
]
