"""What a tool returns is what it says it returns, or that is told."""

import asyncio
import threading
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType, NotRequired, Protocol, TypeVar

import msgspec
import pytest
from pydantic import BaseModel
from scene import agent, results_of, running, the
from typing_extensions import TypedDict

from outlast import Context, NotDone, ToolResult, tool
from outlast.agents.return_type import ReturnType
from outlast.agents.runtime.json_value import to_json
from outlast.agents.tool import Tool
from outlast.errors import NotEncodable
from outlast.log.verify import verify
from outlast.testing.scripted import call, say

T = TypeVar("T")
Cents = NewType("Cents", int)


@dataclass
class Item:
    name: str
    cents: int = 0


@dataclass
class Receipt:
    items: list[Item]
    note: str = None  # type: ignore[assignment]


class Model(BaseModel):
    x: int = None  # type: ignore[assignment]


class Spot(msgspec.Struct):
    x: float


class Row(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass
class Tree:
    leaves: list["Tree"] = field(default_factory=list)


@dataclass
class Odd:
    here: "NotImported"  # type: ignore[name-defined]  # noqa: F821


class Speaks(Protocol):
    def speak(self) -> str: ...


FITS: list[tuple[Any, Any]] = [
    (None, None),
    (int, 5),
    (int, True),
    (float, 5),
    (str | None, None),
    (Receipt, Receipt([Item("tea")])),
    (Receipt, Receipt([], note=None)),  # type: ignore[arg-type]
    (Model, Model.model_construct(x="of its own making")),
    (Spot, Spot(2)),
    (Row, {"name": "a"}),
    (Row, {"name": "a", "more": 1}),
    (Tree, Tree([Tree(), Tree()])),
    (list[int], [1, 2, True]),
    (Sequence[str], ("a", "b")),
    (Mapping[str, list[Spot]], {"a": [Spot(1)]}),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2)),
    (set[str], {"a"}),
    (Literal["a", 1], 1),
    (Cents, 5),
    (Annotated[int, "cents"], 5),
    (Awaitable[int], 5),
    (Any, "whatever"),
    (object, 1),
    (T, 1),
    (int | T, "x"),
    (Speaks, "x"),
    (type[int], "x"),
    (Odd, Odd(here=1)),
    (ToolResult, "x"),
    (ToolResult[int], "x"),
    (str | ToolResult[int], 1),
]


@pytest.mark.parametrize(("hint", "value"), FITS, ids=repr)
def test_what_is_of_the_type_or_has_no_check_passes(hint: Any, value: Any) -> None:
    assert ReturnType(hint, unwrapped=(ToolResult,)).misfit(value) == ""


DIFFERS: list[tuple[Any, Any, str]] = [
    (None, 1, "returned an int, and is declared to return None"),
    (int, "5", "returned a str, and is declared to return int"),
    (Receipt, "paid", "returned a str, and is declared to return Receipt"),
    (Receipt, None, "returned None, and is declared to return Receipt"),
    (Receipt, {"items": []}, "returned a dict, and is declared to return Receipt"),
    (Receipt | None, "paid", "returned a str, and is declared to return Receipt | None"),
    (Model, {"x": 1}, "returned a dict, and is declared to return Model"),
    (
        Receipt,
        Receipt([Item("tea"), Item("cup", "two")]),  # type: ignore[arg-type]
        "is declared to return Receipt, and returned a Receipt whose .items[1].cents is a str"
        " instead of int",
    ),
    (Spot, Spot("x"), "whose .x is a str instead of float"),  # type: ignore[arg-type]
    (Row, {"name": 1}, "whose ['name'] is an int instead of str"),
    (Row, {"size": 1}, "returned a dict, and is declared to return Row"),
    (list[int], [1, "2"], "whose [1] is a str instead of int"),
    (list[int] | None, [1, "2"], "whose [1] is a str instead of int"),
    (list[int], (1, 2), "returned a tuple, and is declared to return list[int]"),
    (tuple[int, str], (1, 2), "whose [1] is an int instead of str"),
    (tuple[int, str], (1,), "returned a tuple, and is declared to return tuple[int, str]"),
    (dict[str, list[Spot]], {"a": [None]}, "whose ['a'][0] is None instead of Spot"),
    (dict[str, int], {1: 1}, "whose [key 1] is an int instead of str"),
    (set[int], {"a"}, "whose {…} is a str instead of int"),
    (Literal["a"], "b", "returned a str, and is declared to return Literal['a']"),
    (Literal["a"], ["a"], "returned a list"),
    (Cents, "5", "returned a str"),
    (Awaitable[int], "5", "returned a str"),
    (Tree, Tree([Tree([1])]), ".leaves[0].leaves[0] is an int instead of Tree"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("hint", "value", "told"), DIFFERS, ids=repr)
def test_what_is_of_another_type_is_told_with_both_and_where(
    hint: Any, value: Any, told: str
) -> None:
    assert told in ReturnType(hint).misfit(value)


@tool
async def refund() -> Receipt:
    return "paid"  # type: ignore[return-value]


WRONG = "refund returned a str, and is declared to return Receipt"


async def test_a_result_of_another_type_is_told_and_not_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(agent([call("refund"), say("hm")], tools=[refund])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "hm"

        [cut] = await the(session, "tool.interrupted")
        assert (cut.data["reason"], cut.data["why"]) == ("mismatch", WRONG)
        [told] = await results_of(session)
        assert told.startswith(
            f"The outcome of this call is unknown, although it was run: {WRONG}."
        )
        assert "may have happened" in told
        assert f"the outcome of a tool is unknown: {WRONG}" in caplog.messages
        assert not await verify(app.store, session.id)


@pytest.mark.parametrize("on_interrupt", ["rerun", "fail", "ask"])
async def test_what_an_interruption_means_holds_for_a_result_of_another_type(
    on_interrupt: Any,
) -> None:
    ran: list[int] = []

    @tool(on_interrupt=on_interrupt, name="refund")
    async def counted() -> Receipt:
        ran.append(1)
        return "paid"  # type: ignore[return-value]

    async with running(agent([call("refund"), say("hm")], tools=[counted])) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert ran == [1]  # it would come to the same again
        if on_interrupt == "rerun":
            assert WRONG in (await results_of(session))[0]
        elif on_interrupt == "fail":
            assert result.error is not None
            assert result.error.message.startswith(WRONG)
        else:
            assert result.requests[0].prompt.startswith(WRONG)


async def test_a_transaction_with_a_result_of_another_type_is_undone_and_has_failed() -> None:
    @tool(transactional=True)
    async def book(ctx: Context) -> int:
        await ctx.tx.execute("CREATE TABLE booking (room TEXT)")
        return "blue"  # type: ignore[return-value]

    async with running(agent([call("book"), say("hm")], tools=[book])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [failed] = await the(session, "tool.failed")
        assert failed.data["error"]["code"] == "RESULT_MISMATCH"
        assert (
            "book returned a str, and is declared to return int" in (await results_of(session))[0]
        )


async def test_the_value_beside_a_message_is_checked_too() -> None:
    @tool
    async def look() -> int:
        return ToolResult("five", "5")  # type: ignore[return-value]

    async with running(agent([call("look"), say("hm")], tools=[look])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [cut] = await the(session, "tool.interrupted")
        assert cut.data["why"] == "look returned a str, and is declared to return int"


# What cannot be stored


class Lock:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@dataclass
class Visit:
    pages: list[Any]


def keeps(how: str) -> Tool:
    async def put(ctx: Context) -> None:
        ctx.session.mutate(Visit).seed(Visit([1, {"at": threading.Lock()}]))

    async def append(ctx: Context) -> None:
        ctx.session.mutate(Visit).append(Visit([Lock()]))

    async def update(ctx: Context) -> None:
        ctx.session.mutate(Visit).update(lambda _: Visit([object()]))

    async def emit(ctx: Context) -> None:
        ctx.emit("seen", {"what": {1, object()}})

    async def step(ctx: Context) -> None:
        await ctx.step(lambda: [float("nan")], name="look")

    async def progress(ctx: Context) -> None:
        await ctx.heartbeat(threading.Lock())

    async def result(ctx: Context) -> Visit:
        return Visit([threading.Lock()])

    return Tool(locals()[how], name="shop")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("put", "shop seeded Visit with a Visit whose .pages[1]['at'] is a _thread.lock,"),
        ("append", f"shop appended to Visit a Visit whose .pages[0] is a {__name__}.Lock,"),
        ("update", "shop changed Visit to a Visit whose .pages[0] is an object,"),
        ("emit", "shop emitted seen with a dict whose ['what']{…} is an object,"),
        ("step", "the step 'look' of shop returned a list whose [0] is a float,"),
        ("progress", "shop gave as its progress a _thread.lock,"),
        ("result", "shop returned a Visit whose .pages[0] is a _thread.lock,"),
    ],
)
async def test_what_cannot_be_stored_is_told_with_its_tool_type_and_path(
    how: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(agent([call("shop"), say("hm")], tools=[keeps(how)])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [cut] = await the(session, "tool.interrupted")
        assert cut.data["reason"] == "unstorable"
        assert cut.data["why"].startswith(f"{told} which cannot be stored: ")
        assert any(told in line for line in caplog.messages)
        assert told in (await results_of(session))[0]


def test_a_value_that_holds_itself_and_one_that_cannot_be_drawn_are_told_by_their_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("not now")

    endless: list[Any] = []
    endless.append(endless)
    for value, kind in ((endless, "a list"), ({Shy(): object()}, "a dict")):
        with pytest.raises(NotEncodable, match=f"this is {kind}, which cannot be stored"):
            to_json(value)


async def test_a_reconcile_function_gives_what_the_tool_would_have_given() -> None:
    async def find(ctx: Context, args: dict[str, Any]) -> Any:
        return "found" if ctx.attempt > 1 else NotDone

    @tool(on_interrupt=find, timeout=0.01)
    async def pay() -> int:
        await asyncio.Event().wait()
        return 5

    async with running(agent([call("pay"), say("hm")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert (await the(session, "tool.interrupted"))[-1].data["reason"] == "unreconciled"
        assert await the(session, "tool.completed") == []
