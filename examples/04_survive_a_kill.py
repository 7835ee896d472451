"""A worker is killed in the middle of a charge; another process carries on.

What was recorded is not done again, and what was cut off is not repeated silently.
"""

import asyncio
import multiprocessing
import time
from pathlib import Path

from outlast import Agent, Outlast, tool
from outlast.agents.model import ModelRequest
from outlast.testing import ScriptedModel, ScriptedReply, call, say

LEDGER = Path("ledger.txt")


@tool
def charge(customer: str) -> str:
    """Take ten euros. Says nothing of interruptions, so it is never run twice."""
    with LEDGER.open("a") as lines:
        lines.write(f"{customer}\n")
    if customer == "bea" and multiprocessing.parent_process():
        time.sleep(60)  # the money is gone, and nobody has heard of it yet
    return f"charged {customer}"


def reply(request: ModelRequest) -> ScriptedReply:  # a model that reads what it is told
    results = getattr(request.view.messages[-1], "results", ())
    text = results[0].text if results else ""
    if "unknown" in text:
        return say("Ada has paid. Whether Bea has is unknown: look it up before charging again.")
    return call("charge", customer="bea" if text else "ada")


cashier = Agent("cashier", ScriptedModel(reply), tools=[charge])


async def carry() -> None:
    async with Outlast([cashier], store="sqlite:///kill.db") as app:
        # The same dispatch is the same session, in whatever process.
        session = await app.start(cashier, "Charge Ada and Bea", dispatch_id="monday")
        print((await session.wait()).unwrap())


def work() -> None:
    asyncio.run(carry())


if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    while not (LEDGER.exists() and "bea" in LEDGER.read_text()):
        time.sleep(0.01)
    worker.kill()  # SIGKILL: nothing can be tidied up
    work()
    print("Charged:", charged := LEDGER.read_text().split())
    assert charged == ["ada", "bea"]
