"""Side tables for `Stream.lookup`: files, lakehouse tables and databases."""

from millwheel.lookups.lakehouse_tables import Delta, Iceberg
from millwheel.lookups.parquet_files import Parquet
from millwheel.lookups.postgres_query import Postgres
from millwheel.model.side_table import Rows, SideTable

__all__ = ["Delta", "Iceberg", "Parquet", "Postgres", "Rows", "SideTable"]
