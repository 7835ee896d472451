"""Prompts made of sections: rendered from state, recorded when they change, opened by the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from scene import running, the

from outlast import Agent, Context, Outlast, tool
from outlast.agents.model.client import ModelRequest
from outlast.agents.prompt.template import about_tokens, template_of
from outlast.core.prompt import whole_sections
from outlast.core.record import PromptRendered
from outlast.errors import InvalidDefinition
from outlast.log.verify import verify
from outlast.planning import Plan, Planning, ProgressSection
from outlast.prompts import OpenedSection, PromptContext, PromptTemplate, Section
from outlast.state import replace_latest, slice_type
from outlast.testing.scripted import Script, ScriptedModel, call, calls, say


@slice_type("note", reducer=replace_latest)
@dataclass
class Note:
    text: str


@tool
async def write(ctx: Context, text: str) -> str:
    ctx.session.mutate(Note).dispatch(Note(text))
    return "written"


@tool
async def delete_all() -> str:
    return "deleted"


def notes(ctx: PromptContext) -> str | None:
    latest = ctx.session.query(Note).latest()
    return f"The note says {latest.text}." if latest else "There is no note yet."


def writer(
    script: Script, prompt: PromptTemplate, requests: list[ModelRequest], **options: Any
) -> Agent:
    model = ScriptedModel(script, on_request=requests.append)
    return Agent("a", model, instructions=prompt, **{"tools": [write], **options})


async def prompts_of(app: Outlast, session: Any) -> list[dict[str, str]]:
    """The prompts that the log has, whole, each as texts by section."""
    found: list[dict[str, str]] = []
    texts: dict[str, str] = {}
    for entry in (await app.store.log.load(session.id, "main", 0)).entries:
        if isinstance(entry.record, PromptRendered):
            whole = whole_sections(entry.record, texts)
            texts = {each.digest: each.text for each in whole}
            found.append({each.key: each.text for each in whole})
    return found


# Rendering


async def test_a_prompt_is_rendered_from_state_before_every_model_call() -> None:
    asked: list[ModelRequest] = []
    prompt = PromptTemplate(
        [
            Section("objective", "Write in $language for $$5.", title="Objective"),
            Section("notes", notes, title="Notes", children=[Section("hint", "Be brief.")]),
        ],
        params={"language": "Latin"},
    )
    async with running(writer([call("write", text="hic"), say("done")], prompt, asked)) as app:
        session = await app.start("a", "go")
        await session.wait()

        objective = "## Objective\n\nWrite in Latin for $5."
        assert [each.instructions for each in asked] == [
            f"{objective}\n\n## Notes\n\nThere is no note yet.\n\nBe brief.",
            f"{objective}\n\n## Notes\n\nThe note says hic.\n\nBe brief.",
        ]
        assert not await verify(app.store, session.id)


async def test_params_can_be_a_function_of_the_session() -> None:
    asked: list[ModelRequest] = []
    prompt = PromptTemplate(
        [Section("who", "You serve $who, as ${role}.")],
        params=lambda ctx: {"who": ctx.session.principal, "role": ctx.deps or "a clerk"},
    )
    async with running(writer([say("done")], prompt, asked)) as app:
        await (await app.start("a", "go", principal="ada")).wait()

        assert asked[0].instructions == "You serve ada, as a clerk."


async def test_a_section_whose_function_says_nothing_is_left_out_with_its_children_and_tools() -> (
    None
):
    asked: list[ModelRequest] = []

    async def only_with_a_note(ctx: PromptContext) -> str | None:
        return "Delete them all." if ctx.session.query(Note).latest() else None

    prompt = PromptTemplate(
        [
            Section("always", "Work."),
            Section(
                "danger",
                only_with_a_note,
                title="Danger",
                children=[Section("more", "Really.")],
                tools=[delete_all],
            ),
        ]
    )
    script = [call("delete_all"), call("write", text="x"), call("delete_all"), say("done")]
    async with running(writer(script, prompt, asked)) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert asked[0].instructions == "Work."
        assert asked[-1].instructions == "Work.\n\n## Danger\n\nDelete them all.\n\nReally."
        offered = [[spec.name for spec in each.tools] for each in asked]
        assert offered == [["write"], ["write"], *2 * [["write", "delete_all"]]]
        [failed] = await the(session, "tool.failed")
        assert "the section danger of the instructions is shown in full" in str(failed.data)


async def test_what_stands_at_the_tail_comes_behind_the_conversation() -> None:
    asked: list[ModelRequest] = []
    tail = Section("notes", notes, tail=True, children=[Section("hint", "Be brief.")])
    prompt = PromptTemplate([tail, Section("objective", "Write.")])
    async with running(writer([say("done")], prompt, asked)) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert asked[0].instructions == "Write."
        assert asked[0].tail == "There is no note yet.\n\nBe brief."
        assert len(await session.history()) == 2  # it is no part of the conversation


async def test_a_tail_is_sent_to_a_provider_as_the_last_message_and_moves_on_with_it() -> None:
    sent: list[list[str]] = []

    def answer(messages: list[Any], _: Any) -> ModelResponse:
        sent.append([type(part).__name__ for each in messages for part in each.parts])
        if len(sent) == 1:
            return ModelResponse([ToolCallPart("write", {"text": "x"})])
        assert messages[-1].parts[0].content == "The note says x."
        return ModelResponse([TextPart("done")])

    prompt = PromptTemplate([Section("notes", notes, tail=True)])
    model = FunctionModel(answer)
    async with running(Agent("a", model, instructions=prompt, tools=[write])) as app:
        assert (await (await app.start("a", "go")).wait()).output == "done"

    user, answered = "UserPromptPart", ["ToolCallPart", "ToolReturnPart"]
    assert sent == [[user, user], [user, *answered, user]]


async def test_a_section_that_depends_on_slices_is_rendered_once_until_one_has_changed() -> None:
    asked: list[ModelRequest] = []
    runs: list[str] = []

    def counted(ctx: PromptContext) -> str | None:
        runs.append(ctx.session.id)
        return notes(ctx)

    prompt = PromptTemplate([Section("notes", counted, depends_on=[Note])])
    script = [call("write", text="x"), call("write", text="x"), say("done")]
    async with running(writer(script, prompt, asked)) as app:
        await (await app.start("a", "go")).wait()
        assert len(runs) == 2
        assert asked[-1].instructions == "The note says x."

        await (await app.start("a", "go")).wait()
        assert len(runs) == 4  # another session has its own


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (lambda _: 3, "the section bad returned 3, and not a text or None"),
        (lambda _: 1 / 0, "ZeroDivisionError"),
        ("$unknown", "the section bad has the parameter $unknown"),
    ],
)
async def test_a_section_that_fails_fails_the_turn_and_says_why(body: Any, why: str) -> None:
    prompt = PromptTemplate([Section("bad", body)], params=lambda _: {"known": 1})
    async with running(writer([say("done")], prompt, [])) as app:
        result = await (await app.start("a", "go")).wait()

        assert result.error is not None
        assert result.error.code == "INSTRUCTIONS_FAILED"
        assert why in result.error.message


# What the model opens

MANUAL = Section(
    "manual",
    "All of the $what.",
    title="Manual",
    summary="How to delete $what.",
    visibility="summary",
    children=[Section("annex", "The annex.")],
    tools=[delete_all],
)


async def test_a_summary_is_shown_until_the_model_opens_the_section() -> None:
    asked: list[ModelRequest] = []
    prompt = PromptTemplate([Section("work", "Work."), MANUAL], params={"what": "notes"})
    script = [
        calls(("open_sections", {"sections": ["manual"], "reason": "to delete"})),
        call("delete_all"),
        say("done"),
    ]
    async with running(writer(script, prompt, asked)) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert asked[0].instructions == (
            "Work.\n\n## Manual\n\nHow to delete notes.\n"
            '(This is a summary. For all of it, call open_sections with "manual".)'
        )
        assert [spec.name for spec in asked[0].tools] == ["write", "open_sections"]
        assert asked[1].instructions == "Work.\n\n## Manual\n\nAll of the notes.\n\nThe annex."
        assert [spec.name for spec in asked[1].tools] == ["write", "delete_all", "open_sections"]
        assert await session.query(OpenedSection).all() == [OpenedSection("manual", "to delete")]
        assert [e.data["value"] for e in await the(session, "tool.completed")][1] == "deleted"

        await session.send("again")
        await session.wait()
        assert "All of the notes." in asked[-1].instructions  # open in later turns, too


async def test_a_section_that_cannot_be_opened_is_told_to_the_model() -> None:
    prompt = PromptTemplate([MANUAL], params={"what": "notes"})
    script = [
        call("open_sections", sections=["annex"]),
        call("open_sections", sections=[]),
        say("done"),
    ]
    async with running(writer(script, prompt, [])) as app:
        session = await app.start("a", "go")
        await session.wait()

        said = [event.data["error"]["message"] for event in await the(session, "tool.failed")]
        assert said == [
            "there is no section annex to open; there is: manual",
            "name the sections to open: manual",
        ]


async def test_a_function_can_say_whether_a_section_is_shown_in_full() -> None:
    asked: list[ModelRequest] = []
    section = Section(
        "manual",
        "All.",
        summary="Some.",
        visibility=lambda ctx: "full" if ctx.session.query(Note).latest() else "summary",
    )
    script = [call("write", text="x"), say("done")]
    async with running(writer(script, PromptTemplate([section]), asked)) as app:
        await (await app.start("a", "go")).wait()

        assert asked[0].instructions.startswith("Some.")
        assert asked[1].instructions == "All."


# The log


async def test_a_prompt_is_recorded_when_it_changes_with_the_texts_that_are_new() -> None:
    asked: list[ModelRequest] = []
    prompt = PromptTemplate([Section("long", "Work." * 100), Section("notes", notes, tail=True)])
    script = [call("write", text="x"), call("write", text="x"), say("done")]
    async with running(writer(script, prompt, asked)) as app:
        session = await app.start("a", "go")
        await session.wait()

        entries = (await app.store.log.load(session.id, "main", 0)).entries
        first, second = (e.record for e in entries if isinstance(e.record, PromptRendered))
        assert [bool(each.text) for each in first.sections] == [True, True]
        assert [bool(each.text) for each in second.sections] == [False, True]
        assert [each["notes"] for each in await prompts_of(app, session)] == [
            "There is no note yet.",
            "The note says x.",
        ]
        assert (await prompts_of(app, session))[1]["long"] == "Work." * 100
        assert not await verify(app.store, session.id)
        assert not await the(session, "prompt.rendered")  # readers do not see it


async def test_a_prompt_that_goes_back_to_what_it_was_is_recorded_whole_again() -> None:
    prompt = PromptTemplate([Section("notes", notes)])
    script = [call("write", text=each) for each in ("x", "y", "x")]
    async with running(writer([*script, say("done")], prompt, [])) as app:
        session = await app.start("a", "go")
        await session.wait()

        said = [each["notes"] for each in await prompts_of(app, session)]
        assert said[1:] == [f"The note says {each}." for each in ("x", "y", "x")]


async def test_an_agent_without_a_template_records_no_prompt() -> None:
    model = ScriptedModel([say("done")])
    async with running(Agent("a", model, instructions="Work.")) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await prompts_of(app, session) == []


# Definitions

CYCLE: list[Section] = [Section("inner", "x")]
CYCLE.append(Section("outer", "x", children=CYCLE))


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ([Section("a"), Section("a")], "two sections a: give one another key"),
        (
            [Section("a", children=[Section("b"), Section("b")])],
            "two sections a.b: give one another key",
        ),
        (CYCLE, "the section outer.outer contains itself"),
        ([Section("a", "$who")], r"the section a has the parameter \$who, .* are what"),
        ([Section("a", "x", summary="$who")], r"the section a has the parameter \$who"),
        ([Section("a", "5 $ each")], "the section a has a .* that begins no name"),
        ([Section("a b")], "'a b' cannot be the key of a section"),
        ([Section("a", visibility="summary")], "shown as a summary, and has none"),
        ([Section("a", visibility="none")], 'not "full" or "summary"'),  # type: ignore[arg-type]
        ([Section("a", 5)], "no text and no function: 5"),  # type: ignore[arg-type]
        ([Section("a", "x", depends_on=[Note])], "is a text, which depends on no slices"),
        ([Section("a", notes, depends_on=["note"])], "classes of slices"),  # type: ignore[list-item]
        ([Section("a", tools=write)], "tools of the section a have to be given in a list"),  # type: ignore[arg-type]
        (["a"], r"given in a list of Section\(…\)"),
        (Section("a"), r"given in a list of Section\(…\)"),
    ],
)
def test_sections_that_do_not_fit_are_refused(sections: Any, why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why):
        PromptTemplate(sections, params={"what": 1})


def test_a_tool_of_a_section_has_a_name_of_its_own() -> None:
    prompt = PromptTemplate([Section("a", "x", tools=[write])])

    with pytest.raises(InvalidDefinition, match="agent a has two tools named write"):
        writer([], prompt, [])


def test_one_tool_may_belong_to_several_sections() -> None:
    prompt = PromptTemplate([Section(key, "x", tools=[write]) for key in "ab"])

    assert [*writer([], prompt, [], tools=[]).tools] == ["write"]


def test_params_are_values_by_name() -> None:
    with pytest.raises(InvalidDefinition, match="params of a prompt have to be values by name"):
        PromptTemplate([], params=["who"])  # type: ignore[arg-type]


def test_instructions_of_every_kind_become_a_template() -> None:
    given = PromptTemplate([Section("a", "x")])

    assert template_of(given) is given
    assert [each.path for each in template_of("$5").adding(Section("b")).walk()] == [
        "instructions",
        "b",
    ]


def test_tokens_are_estimated_where_nobody_counts_them() -> None:
    assert about_tokens("") == 0
    assert about_tokens("word") == 1
    assert about_tokens("words") == 2


# Planning


async def test_an_agent_that_plans_is_told_so_in_sections_and_its_progress_stands_at_the_tail() -> (
    None
):
    asked: list[ModelRequest] = []
    prompt = PromptTemplate([Section("work", "Work.")])
    script = [call("planning_setup_plan", objective="Ship", initial_steps=["build"]), say("done")]
    async with running(writer(script, prompt, asked, planning=Planning())) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert asked[0].instructions.startswith("Work.\n\n## Planning")
        assert "No progress yet" in asked[0].tail
        assert "1. build (pending)" in asked[1].tail
        assert [*(await prompts_of(app, session))[-1]] == ["work", "planning", "plan"]


async def test_a_progress_section_can_be_the_body_of_a_section() -> None:
    asked: list[ModelRequest] = []
    section = Section("progress", ProgressSection(), depends_on=[Plan])
    async with running(writer([say("done")], PromptTemplate([section]), asked)) as app:
        await (await app.start("a", "go")).wait()

        assert asked[0].instructions.startswith("## Progress\n\nNo progress yet.")
