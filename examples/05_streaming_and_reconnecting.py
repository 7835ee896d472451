"""A reader that leaves and comes back at its cursor misses nothing and gets nothing twice."""

import asyncio

from outlast import Agent, Event, Outlast
from outlast.testing import ScriptedModel, say

STORY = "Once upon a time there was a log, and nothing in it was ever lost. "
model = ScriptedModel([say(STORY * 3, chunks=40, pace=0.02)])
teller = Agent("teller", model)


async def main() -> None:
    async with Outlast([teller], store="sqlite:///stream.db") as app:
        session = await app.start(teller, "Tell me a story")

        seen: list[Event] = []
        cursor, visits = "0", 0
        while not seen or seen[-1].type != "session.waiting":
            visits += 1
            async for event in session.events(after=cursor):
                seen.append(event)
                cursor = event.cursor
                if event.type == "message.delta":
                    print(event.data["text"], end="", flush=True)
                    break  # the connection is lost, again and again
        print(f"\n({visits} visits)")

        # A reader that never left has read the same.
        undisturbed = [event async for event in session.events()]
        assert seen == undisturbed
        assert visits > 1

        # `message.completed` has the whole text, also for a reader that missed the deltas.
        near = seen[-1].offset - 6
        late = [e async for e in session.events(after=near) if e.type == "message.completed"]
        assert late[0].data["parts"][0]["text"] == STORY * 3


asyncio.run(main())
