"""Rules: a call that is refused, feedback for the model, and a turn that may not end yet."""

import asyncio

from outlast import Agent, Outlast, tool
from outlast.rules import Every, SequentialDependency, TurnContext, completion, feedback
from outlast.testing import ScriptedModel, calls, say


@tool(readonly=True)
async def run_tests() -> str:
    return "12 passed"


@tool
async def publish() -> str:
    return "published"


@feedback(every=Every(calls=2))
async def count(turn: TurnContext) -> str | None:
    return f"{turn.calls} calls so far: come to an end."


@completion
async def is_published(turn: TurnContext) -> str | None:
    return None if "publish" in turn.succeeded else "it is not published"


release, test = calls(("publish", {})), calls(("run_tests", {}))
model = ScriptedModel([release, test, say("All tests pass."), release, say("It is published.")])
releaser = Agent(
    "releaser",
    model,
    tools=[run_tests, publish],
    rules=[SequentialDependency(tool="publish", after="run_tests"), count, is_published],
)


async def main() -> None:
    async with Outlast([releaser], store="sqlite:///rules.db") as app:
        session = await app.start(releaser, "Release it.")
        print((await session.wait()).output)

        said = {"tool.denied", "feedback.given", "completion.refused"}
        events = [each async for each in session.events(follow=False) if each.type in said]
        for event in events:
            print(event.step, event.type, event.data)
        assert [event.type.split(".")[0] for event in events] == ["tool", "feedback", "completion"]


asyncio.run(main())
