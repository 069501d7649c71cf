"""Injectors for common kinds of input (5.2), so that users need not write them."""

from millwheel.injectors.delta import Delta
from millwheel.injectors.files import Files
from millwheel.injectors.generator import Generator
from millwheel.injectors.http import Http
from millwheel.injectors.iceberg import Iceberg
from millwheel.injectors.kafka import Kafka
from millwheel.injectors.messages import Message
from millwheel.injectors.ordered_files import OrderedFiles
from millwheel.injectors.postgres_changes import PostgresChanges
from millwheel.injectors.records import Records
from millwheel.injectors.spark import SparkStream, SparkTable

__all__ = [
    "Delta",
    "Files",
    "Generator",
    "Http",
    "Iceberg",
    "Kafka",
    "Message",
    "OrderedFiles",
    "PostgresChanges",
    "Records",
    "SparkStream",
    "SparkTable",
]
