"""Measurements of millwheel, some of them against a peer: ``python -m benchmarks --help``."""
