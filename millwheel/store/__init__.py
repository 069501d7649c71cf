"""The backing store (4.4, 7.1): ordered bytes, written atomically shard by shard."""
