"""Testing pipelines without Spark and without waiting."""

from millwheel.testing.faults import Faults
from millwheel.testing.harness import Harness
from millwheel.testing.outcome import Simulated
from millwheel.testing.simulate import SimulationFailure, simulate

__all__ = ["Faults", "Harness", "Simulated", "SimulationFailure", "simulate"]
