"""`outlast prompt`: what an agent's model is told, section by section."""

from typing import Annotated, Any

import typer

from outlast.agents.prompt.render import RenderedPrompt
from outlast.agents.prompt.template import template_of
from outlast.app import rendered_prompt
from outlast.cli.terminal.option import AsJson, AsRaw, open_place_or_app
from outlast.cli.terminal.output import json_out, out, table
from outlast.cli.terminal.run import command
from outlast.core.name import MAIN


@command
async def prompt(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is: shop:app")],
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    session: Annotated[
        str | None, typer.Option("--session", help="As that session would be told next.")
    ] = None,
    lane: Annotated[str, typer.Option(help="The lane of the session.")] = MAIN,
    as_json: AsJson = False,
    raw: AsRaw = False,
) -> None:
    """Print an agent's prompt as it is rendered now, with the tokens of each section.

    Tokens are estimated from the length of the text, unless the template counts them itself.
    Nothing is sent to a model.

    Example: outlast prompt shop:app support --session ses_01J9ZK…
    """
    async with open_place_or_app("", app) as place:
        rendered = await rendered_prompt(place, agent, session, lane)
        count = template_of(place.agents[agent].instructions).count_tokens
    sections = [{**facts_of(each), "tokens": count(each.text)} for each in rendered.sections]
    if as_json:
        return json_out({"sections": sections, "tokens": total(sections)})
    show(rendered, sections)
    return None


def facts_of(section: Any) -> dict[str, Any]:
    return {
        "section": section.key,
        "text": section.text,
        "tail": section.tail,
        "summary": section.summary,
    }


def total(sections: list[dict[str, Any]]) -> int:
    return sum(each["tokens"] for each in sections)


def show(rendered: RenderedPrompt, sections: list[dict[str, Any]]) -> None:
    rows = [[each["section"], str(each["tokens"]), what(each)] for each in sections]
    table(["section", "tokens", ""], [*rows, ["all", str(total(sections)), ""]])
    out("")
    out(rendered.instructions)
    if rendered.tail:
        out("\nbehind the conversation:\n", "dim")
        out(rendered.tail)


def what(section: dict[str, Any]) -> str:
    """Say where a section stands, and how much of it."""
    words = [word for word in ("summary", "tail") if section[word]]
    return ", ".join(words)
