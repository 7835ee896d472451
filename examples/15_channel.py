"""People talk to an agent somewhere else: a channel takes in what they say, and tells the answers.

What is posted twice is heard once, and what the agent asks is answered by a button.
"""

import asyncio
import json
import time

from outlast import Agent, Outlast, tool
from outlast.integration.channel import Channel, Inbound, InboundAnswer, InboundRequest, Outgoing
from outlast.integration.outbox import sign, verify
from outlast.testing import ScriptedModel, call, say

SECRET = "at least sixteen bytes"  # noqa: S105 - an example
ROOM = f"room-{time.time_ns()}"  # another with each run
told: asyncio.Queue[Outgoing] = asyncio.Queue()


class Desk(Channel):
    def verify(self, request: InboundRequest) -> None:
        verify(SECRET, request.headers, request.body)

    def read(self, request: InboundRequest) -> Inbound:
        said, name = request.json(), request.header("webhook-id")
        reply = (
            InboundAnswer(request_id=said["asked"], option=said["button"])
            if "button" in said
            else None
        )
        return Inbound(id=name, thread=said["room"], message=said.get("text"), reply=reply)

    async def send(self, outgoing: Outgoing, thread: str) -> None:
        await told.put(outgoing)  # here it would be posted to the desk


@tool(approval="always")
async def refund(order: int) -> str:
    """Give the money back."""
    return "done"


support = Agent("support", ScriptedModel([call("refund", order=17), say("Done.")]), tools=[refund])
app = Outlast([support], store="sqlite:///channel.db", channels=[Desk("desk", support)])


async def post(name: str, **said: str) -> None:
    body = json.dumps({"room": ROOM, **said}).encode()
    received = await app.receive("desk", sign(SECRET, body, int(time.time()), name), body)
    print("in: ", name, "again" if received.receipt.duplicate else "new")


async def main() -> None:
    async with app:
        for _ in range(2):
            await post(f"{ROOM}/1", text="Refund order 17, please")
        asked = await told.get()
        print("out:", asked.text, [option.id for option in asked.request.options])
        await post(f"{ROOM}/2", asked=asked.request.request_id, button="approve")
        print("out:", (await told.get()).text)


asyncio.run(main())
