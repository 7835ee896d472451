"""A deterministic simulation: many workers, faults, ten promises, one seed."""

from outlast.testing.simulation.history import History, HistoryNote
from outlast.testing.simulation.promise import PROMISES, Violation
from outlast.testing.simulation.report import SimulationReport
from outlast.testing.simulation.run import Simulation

__all__ = ["PROMISES", "History", "HistoryNote", "Simulation", "SimulationReport", "Violation"]
