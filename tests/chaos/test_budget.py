"""A few sessions under one budget whose workers are killed; `make chaos` has more, and longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.budget import BudgetSettings, run_budgets
from chaos.place import opened


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_budget_that_sessions_and_their_children_share_is_kept_while_workers_die(
    store: str, tmp_path: Path
) -> None:
    settings = BudgetSettings(
        sessions=3, tree="go 1 2", workers=2, kills=4, pause=0.3, tokens=800, seed=7
    )
    async with opened(store, tmp_path) as place:
        report = await run_budgets(settings, tmp_path, place)

    assert report.wrong == []
    assert report.sessions == 3 * 4
    assert report.kills
    assert report.extended
    assert report.raised
