"""Chaos on real processes: workers are killed and stopped, the database is shaken, users go on.

`python -m chaos` (with `tests` on the path) runs it; `evidence` is what is left of a run, and
`checker` holds it against the promises. Nothing in production code knows of it.
"""

import os
from pathlib import Path

import outlast

TESTS = Path(__file__).parents[1]
SOURCE = Path(outlast.__file__).parents[1]
SEARCH_PATH = os.pathsep.join(map(str, (TESTS, TESTS / "support", SOURCE)))
"""Where processes that are started find their code: it is this process's, whatever is installed."""
