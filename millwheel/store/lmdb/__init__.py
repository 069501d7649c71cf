"""The embedded store in LMDB: one environment for the journal and each shard."""
