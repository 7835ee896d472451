"""Workers in a process of their own: `python fallback_process.py FIRST SECOND STORE…`.

One for each store serves an agent with two models, each at its own address, until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from outlast import Agent, Outlast


def poet(first: str, second: str) -> Agent:
    models = [
        OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="sk-any"))
        for name, url in (("first", first), ("second", second))
    ]
    return Agent("poet", models)


@asynccontextmanager
async def worker_process(*arguments: str) -> AsyncIterator[Process]:
    """Start a process with workers; leave none behind."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def work(first: str, second: str, *stores: str) -> None:
    async with AsyncExitStack() as stack:
        for store in stores:
            await stack.enter_async_context(Outlast([poet(first, second)], store=store))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
