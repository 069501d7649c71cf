"""Testing pipelines without Spark and without waiting."""

from millwheel.testing.faults import Faults
from millwheel.testing.harness import Harness
from millwheel.testing.simulate import Simulated, SimulationFailure, simulate

__all__ = ["Faults", "Harness", "Simulated", "SimulationFailure", "simulate"]
