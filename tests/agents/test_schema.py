import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from outlast import (
    Agent,
    Approval,
    Context,
    DedupeKey,
    Limits,
    ModelOptions,
    Outlast,
    Retry,
    WorkerSettings,
    tool,
)
from outlast.agents.schema import described_arguments
from outlast.errors import InvalidDefinition
from outlast.testing.scripted import ScriptedModel


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
        ("{", "invalid JSON"),
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


def takes_function(function: Callable[[int], int]) -> None: ...


def takes_its_place(amount: int, /) -> None: ...


def takes_context_late(amount: int, ctx: Context) -> None: ...


class Opaque:
    pass


class Desk:
    def sign(self, name: str) -> None: ...

    def stamp(self, ctx: Context, name: str) -> None: ...


def no_type(amount: "int | 'whole'") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def fine() -> None: ...


async def asynchronous(args: dict[str, Any]) -> bool:
    return False


class Asynchronous:
    async def __call__(self, args: dict[str, Any]) -> bool:
        return False


@pytest.mark.parametrize(
    ("function", "manners", "reason"),
    [
        (no_hint, {}, "add a type hint"),
        (many, {}, "name every argument"),
        (named, {}, "name every argument"),
        (unknown_type, {}, "cannot be resolved"),
        (schemaless, {}, "schemaless takes `stream: .*Opaque`, which has no schema: use types"),
        (takes_function, {}, r"takes `function: .*Callable\[\[int\], int\]`, which has no schema"),
        (
            takes_context_late,
            {},
            "`ctx: Context` has to be the first argument of takes_context_late",
        ),
        (takes_its_place, {}, "leave out the /"),
        (fine, {"name": "two words"}, "cannot be a tool's name"),
        (fine, {"name": "x" * 65}, "cannot be a tool's name"),
        (fine, {"max_attempts": 3}, "readonly=True or idempotent=True"),
        (fine, {"idempotency_key": DedupeKey(None)}, "has no key"),  # type: ignore[arg-type]
        (fine, {"transactional": True}, "make it async"),
        (7, {}, "give a function"),
        (partial(fine), {}, "no tool can be made of .*partial.*: give a function, if need be one"),
        (partial(fine), {"name": "part"}, "give a function, if need be one that calls it"),
        (Asynchronous(), {"name": "object"}, "give a function"),
        (Opaque, {}, "give a function"),
        (Desk.sign, {}, r"sign is a method, and a model knows no self: .* tool\(obj.sign\)"),
        (Desk.stamp, {}, r"stamp is a method, .* tool\(obj.stamp\)"),
        (no_type, {}, "the type hints of no_type cannot be resolved: unsupported operand"),
        (fine, {"name": 7}, "cannot be a tool's name"),
        (fine, {"approval": "allways"}, "has to be never, once or always, not 'allways'"),
        (fine, {"approval": asynchronous}, "no async one"),
        (fine, {"approval": Asynchronous()}, "no async one"),
        (fine, {"idempotency_key": asynchronous}, "no async one"),
        (fine, {"idempotency_key": partial(asynchronous)}, "no async one"),
        (fine, {"idempotency_key": "order"}, "a function of the arguments"),
        (fine, {"idempotency_key": DedupeKey(str, "x")}, "has to be session or tenant, not 'x'"),  # type: ignore[arg-type]
        (fine, {"on_interrupt": "retry"}, "has to be rerun, report, ask or fail, not 'retry'"),
        (fine, {"approval": Approval("always", on_expiry="x")}, "has to be deny or fail, not 'x'"),  # type: ignore[arg-type]
        (fine, {"timeout": "5"}, "seconds over 0, not '5'"),
        (fine, {"timeout": 0}, "seconds over 0, not 0"),
        (fine, {"timeout": 1e300}, "at most a thousand years"),
        (fine, {"approval": Approval(timeout=1e12)}, "at most a thousand years"),
        (fine, {"timeout": float("nan")}, "seconds over 0, not nan"),
        (fine, {"max_attempts": 0, "readonly": True}, "of 1 or more, not 0"),
        (fine, {"max_attempts": 1.5, "readonly": True}, "a whole number"),
        (fine, {"approval": Approval(timeout=-1)}, "seconds of 0 or more, not -1"),
        (fine, {"approval": Approval(timeout="a day")}, "seconds of 0 or more"),  # type: ignore[arg-type]
        (fine, {"mutex": 7}, "cannot be read"),
        (fine, {"limit": 7}, r"is a Limit\("),
    ],
)
def test_a_tool_that_cannot_work_is_refused_where_it_is_defined(
    function: Any, manners: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidDefinition, match=reason) as refused:
        tool(**manners)(function)
    assert "pydantic.dev" not in refused.value.message


class Line(TypedDict):
    item: str


def order(lines: list[Line]) -> None: ...


@pytest.mark.parametrize(
    "define", [lambda: tool(order), lambda: agent(output_type=Line)], ids=["argument", "output"]
)
def test_a_type_that_pydantic_knows_better_of_is_refused_in_its_words(
    define: Callable[[], Any],
) -> None:
    if sys.version_info >= (3, 12):  # pydantic takes typing.TypedDict there
        define()
        return
    with pytest.raises(InvalidDefinition, match="no schema: Please use `typing_extensions"):
        define()


def test_the_method_of_an_object_is_a_tool() -> None:
    made = tool(Desk().stamp)

    assert (made.name, set(made.spec.schema["properties"])) == ("stamp", {"name"})


@asynccontextmanager
async def bank() -> AsyncIterator[str]:
    yield "open"


async def no_manager() -> AsyncIterator[str]:
    yield "open"


async def later() -> str:
    return "open"


def an_app(deps: Any) -> Outlast:
    return Outlast([agent()], store="memory://", deps=deps)


@pytest.mark.parametrize("deps", [5, "bank", bank()], ids=["number", "name", "called"])
def test_deps_that_cannot_be_called_are_refused_where_they_are_given(deps: Any) -> None:
    with pytest.raises(InvalidDefinition, match=r"deps is a function .* and is given uncalled"):
        an_app(deps)


@pytest.mark.parametrize("deps", [no_manager, later, lambda: None], ids=["gen", "async", "none"])
async def test_deps_that_return_no_context_manager_are_refused_when_the_app_opens(
    deps: Any,
) -> None:
    with pytest.raises(InvalidDefinition, match=r"deps is a function .* and this one returned"):
        await an_app(deps).open()


def agent(**options: Any) -> Agent[Any, Any]:
    options = {"name": "a", "model": ScriptedModel([]), **options}
    return Agent(**options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"name": ""}, "cannot be an agent's name"),
        ({"name": "7up"}, "cannot be an agent's name"),
        ({"name": "a b"}, "cannot be an agent's name"),
        ({"tools": [fine, fine]}, "two tools named fine"),
        ({"tools": [tool(name="final_result")(fine)]}, "two tools named final_result"),
        ({"output_type": Opaque}, "output_type of agent a, .*Opaque, has no schema: use types"),
        ({"name": 7}, "cannot be an agent's name"),
        ({"model": 7}, "a pydantic-ai Model or a ModelClient, or a list of these, not 7"),
        ({"model": []}, "the list of models of agent a is empty: give at least one"),
        ({"model": ["a:b", ["c:d"]]}, "is a list itself: give all of them in one list"),
        ({"model": ["a:b", "c:d", "a:b"]}, "agent a has two models named 'a:b'"),
        ({"model": ["a:b", 7]}, "or a list of these, not 7"),
        ({"model": [ScriptedModel([]), ScriptedModel([])]}, "two models named 'scripted'"),
        ({"model": ""}, "is a name such as"),
        ({"instructions": 7}, "a text, a function that returns one, or a PromptTemplate"),
        ({"tools": [7]}, "give a function"),
        ({"tools": 7}, "tools of agent a have to be given in a list"),
        ({"subagents": [7]}, "a int is no agent"),
        ({"subagents": 7}, "subagents of agent a have to be given in a list"),
        ({"subscriptions": [7]}, "no Subscription"),
        ({"on_busy": "jion"}, "has to be queue, join or interrupt, not 'jion'"),
        (
            {"model_options": ModelOptions(on_partial="resume")},  # type: ignore[arg-type]
            "has to be continue or restart, not 'resume'",
        ),
        ({"limits": Limits(max_steps=0)}, "max_steps has to be a whole number of 1 or more, not 0"),
        (
            {"limits": Limits(max_crashes="x")},  # type: ignore[arg-type]
            "max_crashes has to be a whole number of 1 or more, not 'x'",
        ),
        (
            {"limits": Limits(max_corrections=-1)},
            "max_corrections has to be a whole number of 0 or more",
        ),
        (
            {"model_options": ModelOptions(max_attempts=True)},
            "max_attempts has to be a whole number",
        ),
        ({"limits": Limits(max_depth=None)}, "max_depth has to be a whole number"),  # type: ignore[arg-type]
        (
            {"limits": Limits(turn_timeout=float("inf"))},
            "turn_timeout has to be at most a thousand years, not inf",
        ),
        ({"model_options": ModelOptions(timeout=None)}, "timeout has to be a number of seconds"),  # type: ignore[arg-type]
        (
            {"model_options": ModelOptions(idle_timeout=-1)},
            "idle_timeout has to be a number of seconds",
        ),
        ({"model_options": ModelOptions(settings=7)}, "settings of agent a are values by name"),  # type: ignore[arg-type]
        ({"model_options": ModelOptions(settings="temperature")}, "are values by name"),  # type: ignore[arg-type]
        ({"model_options": ModelOptions(settings={7: 0.2})}, "are values by name"),  # type: ignore[dict-item]
        ({"limits": Limits(turns=7)}, "limits.turns is a Limit"),  # type: ignore[arg-type]
        ({"limits": {"max_steps": 3}}, "limits has to be Limits"),
        ({"model_options": ModelOptions(limit=7)}, "model_options.limit is a Limit"),  # type: ignore[arg-type]
    ],
)
def test_an_agent_that_cannot_work_is_refused_where_it_is_defined(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidDefinition, match=reason):
        agent(**options)


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0},
        {"concurrency": "x"},
        {"lease": 0},
        {"poll": "x"},
        {"rest": 0.0},
        {"grace": -1},
        {"lane_cache": -1},
        {"agents": "support"},
        {"lanes": (7,)},
    ],
    ids=str,
)
def test_settings_that_no_worker_can_work_by_are_refused(settings: dict[str, Any]) -> None:
    [name] = settings
    with pytest.raises(InvalidDefinition, match=name):
        WorkerSettings(**settings)


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


def test_a_type_or_a_default_may_describe_an_argument_that_the_docstring_does_not() -> None:
    @tool
    async def find(
        name: Annotated[str, Field(description="Whose.", min_length=2)],
        most: int = Field(5, description="How many.", le=9),
        tags: list[str] = Field(default_factory=list),  # noqa: B008 - as users write it
        note: Annotated[str, Field(description="Not this.")] = "",
    ) -> str:
        """Look.

        Args:
            note: But this.
        """
        return name

    told = find.spec.schema["properties"]
    described = {name: each.get("description") for name, each in told.items()}
    assert described == {"name": "Whose.", "most": "How many.", "tags": None, "note": "But this."}
    assert told["most"]["maximum"] == 9
    assert find.arguments.parse('{"name": "ada"}') == {
        "name": "ada",
        "most": 5,
        "tags": [],
        "note": "",
    }


def test_an_argument_may_have_any_name(recwarn: pytest.WarningsRecorder) -> None:
    @tool
    async def odd(model_config: int, model_dump: int, schema: str, _own: int = 1) -> str:
        """Take what pydantic has names for."""
        return schema

    args = '{"model_config": 1, "model_dump": 2, "schema": "three"}'
    assert odd.arguments.parse(args) == {
        "model_config": 1,
        "model_dump": 2,
        "schema": "three",
        "_own": 1,
    }
    assert [*odd.spec.schema["properties"]] == ["model_config", "model_dump", "schema", "_own"]
    with pytest.raises(Retry, match="model_dump: Input should be a valid integer"):
        odd.arguments.parse('{"model_config": 1, "model_dump": "x", "schema": "three"}')
    assert not recwarn.list
