"""`outlast skills`: an agent's skills, and which of them a session has loaded."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from outlast.agents.agent import name_of
from outlast.agents.skill.skill import SKILL_FILE, Skill
from outlast.agents.skill.tool import LoadedSkill
from outlast.cli.terminal.option import AsJson, AsRaw, open_place_or_app
from outlast.cli.terminal.output import json_out, out, table
from outlast.cli.terminal.run import command

DIGITS = 12


@command
async def skills(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is: shop:app")],
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    session: Annotated[
        str | None, typer.Option("--session", help="And what that session has loaded of them.")
    ] = None,
    as_json: AsJson = False,
    raw: AsRaw = False,
) -> None:
    """List an agent's skills, and what a session has loaded of them, by content hash.

    Example: outlast skills shop:app support --session ses_01J9ZK…
    """
    async with open_place_or_app("", app) as place:
        known = place.agents[name_of(agent, place.agents)].skills
        loaded: list[LoadedSkill] = []
        if session is not None:
            loaded = await (await place.session(session)).query(LoadedSkill).all()
    rows = [facts_of(each, loaded) for each in known.values()]
    if as_json:
        return json_out({"skills": rows})
    if not rows:
        return out(f"agent {agent} has no skills")
    table(
        ["skill", "sha256", "files", "loaded", "description"],
        [
            [
                row["skill"],
                row["digest"][:DIGITS],
                str(row["files"]),
                ", ".join(map(told, row["loaded"])),
                row["description"],
            ]
            for row in rows
        ],
    )
    return None


def facts_of(skill: Skill, loaded: Sequence[LoadedSkill]) -> dict[str, Any]:
    return {
        "skill": skill.name,
        "description": skill.description,
        "digest": skill.digest,
        "files": len(skill.files),
        "folder": str(skill.folder),
        "loaded": [
            {"path": each.path, "digest": each.digest, "call_id": each.call_id}
            for each in loaded
            if each.skill == skill.name
        ],
    }


def told(file: dict[str, str]) -> str:
    """Say which text of a skill a session has, if need be which file."""
    digest = file["digest"][:DIGITS]
    return digest if file["path"] == SKILL_FILE else f"{file['path']} {digest}"
