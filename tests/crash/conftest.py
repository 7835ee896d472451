"""Lets the tests of this folder share modules: those named `crash_…`."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from crash_process import Zygote
from crash_run import Scene


@pytest_asyncio.fixture
async def zygote() -> AsyncIterator[Zygote]:
    """A process that forks others, ready at once; those that still live die with it."""
    zygote = await Zygote.start()
    yield zygote
    await zygote.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest, zygote: Zygote, tmp_path: Path) -> Scene:
    """A place on each store."""
    is_postgres = request.param == "postgres"
    url = str(request.getfixturevalue("postgres_url")) if is_postgres else ""
    return Scene(tmp_path, zygote, url=url)
