from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from holdfast import Agent, Context, Retry, tool
from holdfast.agents.signature import described_arguments
from holdfast.errors import InvalidDefinition
from holdfast.testing.scripted import ScriptedModel


class Address(BaseModel):
    street: str


@dataclass
class Item:
    name: str
    count: int = 1


def pay(
    ctx: Context,
    cents: int,
    to: Address,
    items: list[Item],
    method: Literal["card", "cash"] = "card",
    note: Annotated[str, Field(max_length=3)] = "",
) -> str:
    """Move money from here to there.

    Slowly, but surely.

    Args:
        cents: How much, in cents.
        to (Address): Where it goes.
        note: What to write on it.

    Returns:
        A receipt.
    """
    return f"{cents} to {to.street}"


SCHEMA = tool(pay).arguments.schema


def test_the_schema_comes_from_the_type_hints() -> None:
    assert SCHEMA["required"] == ["cents", "to", "items"]
    assert SCHEMA["properties"]["cents"]["type"] == "integer"
    assert SCHEMA["properties"]["method"] == {
        "default": "card",
        "enum": ["card", "cash"],
        "title": "Method",
        "type": "string",
    }
    assert SCHEMA["$defs"]["Address"]["properties"]["street"]["type"] == "string"
    assert SCHEMA["additionalProperties"] is False


def test_the_context_is_not_an_argument() -> None:
    def plain(cents: int) -> None: ...

    def typed(c: Context[str], cents: int) -> None: ...

    for function in (plain, typed):
        assert set(tool(function).arguments.schema["properties"]) == {"cents"}
    assert not tool(plain).arguments.takes_context
    assert tool(typed).arguments.takes_context


def test_descriptions_come_from_the_docstring() -> None:
    assert SCHEMA["properties"]["cents"]["description"] == "How much, in cents."
    assert SCHEMA["properties"]["to"]["description"] == "Where it goes."
    assert "description" not in SCHEMA["properties"]["method"]
    spec = tool(pay).spec
    assert spec.description == "Move money from here to there.\n\nSlowly, but surely."


def test_the_section_of_arguments_ends_where_the_next_begins() -> None:
    found = described_arguments("Do.\n\nArgs:\n    a: One.\n\nReturns:\n    b: not an argument")

    assert found == {"a": "One."}


def test_arguments_come_as_values_of_their_types() -> None:
    args = tool(pay).arguments.parse(
        '{"cents": 5, "to": {"street": "Elm"}, "items": [{"name": "tea"}]}'
    )

    assert args == {
        "cents": 5,
        "to": Address(street="Elm"),
        "items": [Item("tea", 1)],
        "method": "card",
        "note": "",
    }


@pytest.mark.parametrize(
    ("args", "finding"),
    [
        ("", "cents: Field required"),
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ('{"cents": "many"}', "cents: Input should be a valid integer"),
        ('{"sense": 5}', "sense: Extra inputs are not permitted"),
        ('{"to": {"street": 5}}', "to.street: Input should be a valid string"),
        ('{"note": "long"}', "note: String should have at most 3 characters"),
        ('{"method": "gold"}', "method: Input should be 'card' or 'cash'"),
    ],
)
def test_arguments_that_do_not_fit_are_explained_to_the_model(args: str, finding: str) -> None:
    with pytest.raises(Retry) as refused:
        tool(pay).arguments.parse(args)

    assert finding in str(refused.value)


def test_a_tool_is_still_the_function_that_it_was() -> None:
    @tool(readonly=True)
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert double.name == "double"


# Definitions that cannot work


def no_hint(amount) -> None: ...  # type: ignore[no-untyped-def]


def many(*amounts: int) -> None: ...


def named(**amounts: int) -> None: ...


def unknown_type(amount: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def schemaless(stream: "Opaque") -> None: ...


class Opaque:
    pass


def fine() -> None: ...


@pytest.mark.parametrize(
    ("function", "manners", "reason"),
    [
        (no_hint, {}, "add a type hint"),
        (many, {}, "name every argument"),
        (named, {}, "name every argument"),
        (unknown_type, {}, "cannot be resolved"),
        (schemaless, {}, "has no schema"),
        (fine, {"name": "two words"}, "cannot be a tool's name"),
        (fine, {"name": "x" * 65}, "cannot be a tool's name"),
        (fine, {"retry": 2}, "readonly=True or idempotent=True"),
        (fine, {"dedupe": "session"}, "no idempotency_key"),
        (fine, {"transactional": True}, "make it async"),
    ],
)
def test_a_tool_that_cannot_work_is_refused_where_it_is_defined(
    function: Any, manners: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidDefinition, match=reason):
        tool(**manners)(function)


def agent(**options: Any) -> Agent[Any, Any]:
    return Agent(options.pop("name", "a"), ScriptedModel([]), **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": ""}, "cannot be an agent's name"),
        ({"name": "7up"}, "cannot be an agent's name"),
        ({"name": "a b"}, "cannot be an agent's name"),
        ({"tools": [fine, fine]}, "two tools named fine"),
        ({"tools": [tool(name="final_result")(fine)]}, "two tools named final_result"),
        ({"output_type": Opaque}, "has no schema"),
    ],
)
def test_an_agent_that_cannot_work_is_refused_where_it_is_defined(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidDefinition, match=reason):
        agent(**options)


@pytest.mark.parametrize(
    ("manners", "on_interrupt"),
    [
        ({}, "report"),
        ({"readonly": True}, "rerun"),
        ({"idempotent": True}, "rerun"),
        ({"readonly": True, "on_interrupt": "fail"}, "fail"),
        ({"on_interrupt": "ask"}, "ask"),
        ({"on_interrupt": lambda ctx, args: None}, "reconcile"),
    ],
)
def test_what_an_interruption_means_follows_from_what_the_tool_says_of_itself(
    manners: dict[str, Any], on_interrupt: str
) -> None:
    assert tool(**manners)(fine).policy.on_interrupt == on_interrupt
