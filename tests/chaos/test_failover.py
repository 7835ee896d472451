"""A short failover under load of each kind; `make chaos` has a longer one."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.failover import FailoverSettings, run_failover


@pytest.mark.timeout(300)  # a slow machine may take long
@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "lagging"])
async def test_no_log_is_wrong_and_nothing_is_left_unanswered_after_a_failover(
    synchronous: bool, tmp_path: Path
) -> None:
    settings = FailoverSettings(synchronous=synchronous, sessions=12, seconds=9.0)

    assert await run_failover(settings, tmp_path) == []
