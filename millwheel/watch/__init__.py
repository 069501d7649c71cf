"""Observing a pipeline: status, metrics, one key, and a page; read-only."""
