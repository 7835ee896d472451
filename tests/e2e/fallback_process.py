"""Workers in a process of their own: `python fallback_process.py FIRST SECOND STORE…`.

One for each store serves an agent with two models, each at its own address, until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from outlast import Agent, Outlast


def poet(first: str, second: str) -> Agent:
    models = [
        OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="sk-any"))
        for name, url in (("first", first), ("second", second))
    ]
    return Agent("poet", models)


async def work(first: str, second: str, *stores: str) -> None:
    async with AsyncExitStack() as stack:
        for store in stores:
            await stack.enter_async_context(Outlast([poet(first, second)], store=store))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
