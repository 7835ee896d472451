"""A short outage of the provider on each store; `make chaos` has all kinds, and longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from chaos.outage import OutageSettings, run_outage


@pytest.mark.timeout(300)  # a slow machine may take long
@pytest.mark.parametrize(("store", "kind"), [("sqlite", "503"), ("postgres", "cut")])
async def test_an_outage_of_the_provider_costs_no_session_and_no_answer(
    store: str, kind: str, tmp_path: Path
) -> None:
    few = OutageSettings(store=store, kind=kind, tasks=12, conversations=5)
    settings = replace(few, seconds=2.0, kills=1, max_attempts=2)

    report = await run_outage(settings, tmp_path)

    assert report.wrong == []
    assert report.parked
    assert report.calls
