"""The shared store, in PostgreSQL: a schema, one table for the journal and one for each shard."""
