"""The shared store in PostgreSQL: a schema with tables for journal and shards."""
