"""Short runs of deploys under live sessions on each store; `make chaos` has longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.deploys import DeploySettings, run_deploys
from chaos.rolling import NEW, OLD, RollingSettings, run_rolling


@pytest.mark.timeout(300)  # a slow machine may take long
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_check_foretells_what_parked_sessions_meet_and_none_of_them_is_lost(
    store: str, tmp_path: Path
) -> None:
    settings = DeploySettings(store=store, sessions=21, seed=7, workers=1, kills=1)

    report = await run_deploys(settings, tmp_path)

    assert report.wrong == []
    assert {"tool", "arguments", "wait"} <= set(report.met)


@pytest.mark.timeout(300)  # a slow machine may take long
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_no_turn_changes_its_code_while_its_deployment_leaves_and_readers_have_it_whole(
    store: str, tmp_path: Path
) -> None:
    report = await run_rolling(RollingSettings(store=store, chats=12, seed=7), tmp_path)

    assert report.wrong == []
    assert set(report.turns) == {OLD, NEW}
    assert report.cut
