"""What users write: computations, records, timers, keys, codecs, pipelines (paper 4 and 5)."""
