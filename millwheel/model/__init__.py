"""What users write: computations, records, timers, keys, codecs, pipelines."""
