"""People talk to an agent elsewhere. A post that comes twice counts once; a button answers."""

import asyncio
import json
import time

from outlast import Agent, Channel, Outlast, tool
from outlast.integration.channel import Inbound, InboundAnswer, InboundRequest, Outgoing
from outlast.integration.outbox import sign, verify
from outlast.testing import ScriptedModel, call, say

SECRET = "at least sixteen bytes"  # noqa: S105 - an example
ROOM = f"room-{time.time_ns()}"  # another with each run
told = asyncio.Queue[Outgoing]()


class Desk(Channel):
    def verify(self, request: InboundRequest) -> None:
        verify(SECRET, request.headers, request.body)

    def read(self, request: InboundRequest) -> Inbound:
        said, id = request.json(), request.header("webhook-id")
        if "text" in said:
            return Inbound(id=id, thread=said["room"], message=said["text"])
        pressed = InboundAnswer(request_id=said["asked"], option=said["button"])
        return Inbound(id=id, thread=said["room"], reply=pressed)

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
    headers = sign(SECRET, body, int(time.time()), name)
    received = await app.channels.receive("desk", headers, body)
    print("in: ", name, "again" if received.receipt and received.receipt.duplicate else "new")


async def main() -> None:
    async with app:
        await post(f"{ROOM}/1", text="Refund order 17, please")
        await post(f"{ROOM}/1", text="Refund order 17, please")
        print("out:", (asked := await told.get()).text)
        assert asked.request
        await post(f"{ROOM}/2", asked=asked.request.request_id, button="approve")
        print("out:", (await told.get()).text)


asyncio.run(main())
