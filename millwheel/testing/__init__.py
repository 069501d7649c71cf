"""Testing pipelines without Spark and without waiting."""

from millwheel.testing.harness import Harness

__all__ = ["Harness"]
