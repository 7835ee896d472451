"""What code waits for, read from its texts and its source: yes, no, or nothing certain."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from enum import Enum, StrEnum
from types import SimpleNamespace
from typing import Any

import pytest

from outlast import Context, WorkflowContext, tool, workflow
from outlast.core.lane import OpenRequest
from outlast.session.code_text import asks, waits_for_event

PAID = "order.paid"
NAMES = {"paid": "order.paid"}
MANY = ["order.paid", "order.sent"]
REASONS = SimpleNamespace(paid="order.paid")


class Topic(Enum):
    PAID = "order.paid"
    SENT = "order.sent"


class Text(StrEnum):
    PAID = "order.paid"


class Words:
    PAID = "order.paid"


events = types.ModuleType("events")
vars(events)["PAID"] = "order.paid"


async def helper(ctx: WorkflowContext) -> None:
    await ctx.wait_event(events.PAID)


async def given(ctx: WorkflowContext, name: str) -> None:
    await ctx.wait_event(name)


vars(events)["helper"] = helper


def waiting_for(find: Callable[[], str]) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapped(*args: Any, **options: Any) -> Any:
            return await function(*args, **options)

        return wrapped

    return decorate


async def constant(ctx: WorkflowContext) -> None:
    await ctx.wait_event(PAID)


async def member(ctx: WorkflowContext) -> None:
    await ctx.wait_event(Topic.PAID.value)


async def member_of_texts(ctx: WorkflowContext) -> None:
    await ctx.wait_event(name=Text.PAID)


async def attribute(ctx: WorkflowContext) -> None:
    await ctx.wait_event(Words.PAID)


async def of_module(ctx: WorkflowContext) -> None:
    await ctx.wait_event(events.PAID)


async def of_object(ctx: WorkflowContext) -> None:
    await ctx.wait_event(REASONS.paid)


async def of_mapping(ctx: WorkflowContext) -> None:
    await ctx.wait_event(NAMES["paid"])


async def of_list(ctx: WorkflowContext) -> None:
    await ctx.wait_event(MANY[0])


async def joined(ctx: WorkflowContext, number: int) -> None:
    await ctx.wait_event(f"order.paid/{number}")


async def assigned(ctx: WorkflowContext, late: bool) -> None:
    name = Topic.PAID.value if late else Words.PAID
    await ctx.wait_event(name)


async def by_helper(ctx: WorkflowContext) -> None:
    await events.helper(ctx)


async def each_member(ctx: WorkflowContext) -> None:
    for topic in Topic:
        await ctx.wait_event(topic.value)


@waiting_for(lambda: "")
async def decorated(ctx: WorkflowContext) -> None:
    await ctx.wait_event(Words.PAID)


SHOWN: list[Callable[..., Any]]
SHOWN = [constant, member, member_of_texts, attribute, of_module, of_object, of_mapping, of_list]
SHOWN += [assigned, by_helper, decorated]


@pytest.mark.parametrize("body", [*SHOWN, joined, each_member], ids=lambda each: each.__name__)
def test_a_name_is_found_wherever_it_stands_in_the_code(body: Callable[..., Any]) -> None:
    assert waits_for_event(workflow(body), "order.paid") is True


@pytest.mark.parametrize("body", [*SHOWN, joined], ids=lambda each: each.__name__)
def test_a_name_that_code_shows_not_to_wait_for_is_gone(body: Callable[..., Any]) -> None:
    assert waits_for_event(workflow(body), "invoice.due") is False


async def by_argument(ctx: WorkflowContext, name: str) -> None:
    await ctx.wait_event(name)


async def by_call(ctx: WorkflowContext) -> None:
    await ctx.wait_event(Words.PAID.upper())


async def by_step(ctx: WorkflowContext) -> None:
    name = await ctx.step(str, "order", name="which")
    await ctx.wait_event(name)


async def by_given(ctx: WorkflowContext) -> None:
    await given(ctx, "order" + "." + "paid")


async def by_unknown(ctx: WorkflowContext) -> None:
    await REASONS.wait(ctx)


async def by_other_name(ctx: WorkflowContext) -> None:
    other = ctx
    await other.wait_event(Words.PAID)


async def by_changed(ctx: WorkflowContext) -> None:
    name = "order"
    name += ".paid"
    await ctx.wait_event(name)


async def by_options(ctx: WorkflowContext, options: dict[str, Any]) -> None:
    await ctx.wait_event(**options)


HIDDEN = [by_argument, by_call, by_step, by_given, by_unknown, by_other_name, by_changed]
HIDDEN += [by_options, each_member]


@pytest.mark.parametrize("body", HIDDEN, ids=lambda each: each.__name__)
def test_nothing_certain_is_said_of_a_name_that_code_puts_together(
    body: Callable[..., Any],
) -> None:
    assert waits_for_event(workflow(body), "invoice.due") is None


def test_nothing_certain_is_said_of_code_without_source() -> None:
    space: dict[str, Any] = {"Context": WorkflowContext}
    exec("async def body(ctx: Context):\n    await ctx.wait_event('paid')", space)  # noqa: S102
    assert waits_for_event(workflow(space["body"]), "paid") is True
    assert waits_for_event(workflow(space["body"]), "invoice.due") is None


def question(name: str, asked: str = "") -> OpenRequest:
    return OpenRequest(request_id="req_1", kind="question", call_id="c", name=name, asked=asked)


def test_a_named_question_is_known_by_its_whole_name_however_short() -> None:
    @tool
    async def book(ctx: Context, words: str) -> str:
        """Book a flight."""
        return (await ctx.ask(words, name="ok:1")).text

    assert asks(book, question("ask:ok%3A1#1")) is True
    assert asks(book, question("ask:no#1")) is False


def test_a_question_that_consists_of_variables_is_not_said_to_be_gone() -> None:
    @tool
    async def consult(ctx: Context, about: str) -> str:
        """Ask a human."""
        return "they have said " + (await ctx.ask(about)).text

    @tool
    async def confirm(ctx: Context, about: str) -> str:
        """Ask a human."""
        return (await ctx.ask(f"Really {about}?")).text

    assert asks(consult, question("ask:=12ab#1", "Which seat?")) is None
    assert asks(confirm, question("ask:=12ab#1", "Which seat?")) is False
    assert asks(confirm, question("ask:=12ab#1", "Really pay?")) is True
