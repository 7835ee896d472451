"""A deterministic simulation: many workers, faults, ten promises, one seed."""

from outlast.testing.simulation.promise import PROMISES, Violation
from outlast.testing.simulation.report import SimulationReport
from outlast.testing.simulation.run import Simulation

__all__ = ["PROMISES", "Simulation", "SimulationReport", "Violation"]
