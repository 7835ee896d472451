"""A digest on every weekday at nine in Berlin, and one right now, by hand.

Any number of workers may keep the time: an instant starts one session, with no human to ask.
"""

import asyncio

from outlast import Agent, Outlast, Schedule, tool
from outlast.testing import ScriptedModel, call, say


@tool(readonly=True)
async def read_news(day: str) -> list[str]:
    """Read what came in on a day."""
    return ["Limpets hold fast.", "It rained."]


digest = Agent(
    "digest",
    ScriptedModel([call("read_news", day="today"), say("Two things happened.")]),
    instructions="Sum up the news.",
    tools=[read_news],
)
morning = Schedule(
    "0 9 * * 1-5",
    agent=digest,
    message=lambda at: f"The digest of {at:%A, %d %B}, please.",
    timezone="Europe/Berlin",
    catch_up="one",  # after an outage, the latest that was missed
    overlap="skip",  # if yesterday's still runs, none today
)
app = Outlast([digest], store="sqlite:///digest.db", schedules=[morning])


async def main() -> None:
    async with app:
        session = await app.schedules.trigger("digest")
        print((await session.wait()).unwrap())
        [listed] = await app.schedules.list()
        print(listed.name, "is", listed.status, "as", listed.cron, "in", listed.timezone)
        if listed.next_at is not None:
            print("next at", listed.next_at)


asyncio.run(main())
