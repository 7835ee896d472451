"""A deterministic simulation: many workers, bad weather, ten promises, one seed."""

from holdfast.testing.simulation.promise import PROMISES, Violation
from holdfast.testing.simulation.report import Report
from holdfast.testing.simulation.run import Simulation

__all__ = ["PROMISES", "Report", "Simulation", "Violation"]
