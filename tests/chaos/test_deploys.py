"""A short run of deploys under parked sessions on each store; `make chaos` has more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.deploys import DeploySettings, run_deploys


@pytest.mark.timeout(300)  # a slow machine may take long
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_check_foretells_what_parked_sessions_meet_and_none_of_them_is_lost(
    store: str, tmp_path: Path
) -> None:
    settings = DeploySettings(store=store, sessions=21, seed=7, workers=1, kills=1)

    report = await run_deploys(settings, tmp_path)

    assert report.wrong == []
    assert {"tool", "arguments", "wait"} <= set(report.met)
