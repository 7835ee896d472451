"""Lets the tests of this folder share modules: those named `crash_…`."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))

from crash_process import Zygote


@pytest_asyncio.fixture
async def zygote() -> AsyncIterator[Zygote]:
    """A process that forks others, ready at once; those that still live die with it."""
    zygote = await Zygote.start()
    yield zygote
    await zygote.stop()
