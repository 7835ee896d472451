"""A deterministic simulation: many workers, faults, ten promises, one seed.

`world.py` builds stores, workers and users from a seed, `run.py` lets them run on a virtual clock
(`loop.py`), `history.py` notes from outside what happens, and `promise.py` holds that against what
is promised, by the `check_*.py` beside it. `random_*.py` make agents, rules and faults by chance.
"""

from outlast.testing.simulation.history import History, HistoryNote
from outlast.testing.simulation.promise import PROMISES, Violation
from outlast.testing.simulation.report import SimulationReport
from outlast.testing.simulation.run import Simulation

__all__ = ["PROMISES", "History", "HistoryNote", "Simulation", "SimulationReport", "Violation"]
