"""Skills: instructions in a folder that a model loads when a task needs them.

Needs the extra `skills`.
"""

import asyncio
from pathlib import Path

from outlast import Agent, Outlast
from outlast.skills import LoadedSkill
from outlast.testing import ScriptedModel, call, say

REFUNDS = """\
---
name: refunds
description: How refunds are given. Use it before any money is paid back.
---

Never refund more than was paid. For orders from abroad, read references/abroad.md.
"""

folder = Path("skills/refunds")
(folder / "references").mkdir(parents=True, exist_ok=True)
(folder / "SKILL.md").write_text(REFUNDS)
(folder / "references/abroad.md").write_text("Customs are not refunded.\n")

model = ScriptedModel(
    [
        call("load_skill", skill="refunds"),
        call("read_skill_file", skill="refunds", path="references/abroad.md"),
        say("You get back what you paid, without the customs."),
    ]
)
support = Agent("support", model, instructions="You help with orders.", skills="skills/")


async def main() -> None:
    async with Outlast([support], store="sqlite:///skills.db") as app:
        session = await app.start(support, "Refund my order from Norway.")
        print((await session.wait()).output)

        for loaded in await session.query(LoadedSkill).all():
            print(f"{loaded.skill}/{loaded.path} {loaded.digest[:12]} by {loaded.call_id}")
        assert [each.path for each in await session.query(LoadedSkill).all()] == [
            "SKILL.md",
            "references/abroad.md",
        ]


asyncio.run(main())
