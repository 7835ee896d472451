"""Prompts: sections that are rendered from the session's state, and one that the model opens."""

import asyncio
from dataclasses import dataclass

from outlast import Agent, Context, Outlast, tool
from outlast.prompts import PromptContext, PromptTemplate, Section
from outlast.testing import ScriptedModel, call, say


@dataclass
class Finding:
    file: str
    issues: int


@tool
async def analyse(ctx: Context, file: str) -> str:
    ctx.session.mutate(Finding).append(Finding(file, len(file)))
    return f"{len(file)} issues"


def findings(ctx: PromptContext) -> str:
    found = ctx.session.query(Finding).all()
    return "\n".join(f"- {each.file}: {each.issues}" for each in found) or "Nothing yet."


prompt = PromptTemplate(
    [
        Section("objective", "Review $project.", title="Objective"),
        Section("style", "Be kind.", title="Style", summary="How to say it.", visibility="summary"),
        Section("findings", findings, title="Found so far", depends_on=[Finding], tail=True),
    ],
    params={"project": "the billing service"},
)
model = ScriptedModel(
    [call("analyse", file="tax.py"), call("open_sections", sections=["style"]), say("Reviewed.")],
    on_request=lambda request: print(f"{request.instructions}\n---\n{request.tail}\n"),
)
reviewer = Agent("reviewer", model, instructions=prompt, tools=[analyse])


async def main() -> None:
    async with Outlast([reviewer], store="sqlite:///prompts.db") as app:
        session = await app.start(reviewer, "Begin.")
        print((await session.wait()).output)

        events = session.events(follow=False, internals=True)
        rendered = [each async for each in events if each.type == "prompt.rendered"]
        for event in rendered:
            print(event.call_id, [part["key"] for part in event.data["sections"] if "text" in part])
        assert len(rendered) == 3


asyncio.run(main())
