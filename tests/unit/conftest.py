"""Lets the tests of this folder share modules: `history` and `recovery_cases`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
