"""The embedded store, in LMDB: a folder, one environment for the journal and one for each shard."""
