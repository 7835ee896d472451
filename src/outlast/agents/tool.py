"""Tools: functions that a model may call, and what their authors say about them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from string import Formatter
from typing import Any, Generic, Literal, TypeVar, overload

from msgspec import Struct

from outlast.agents.limit import Limit, checked_limit, in_order
from outlast.agents.model.client import ToolSpec
from outlast.agents.runtime.context import Context
from outlast.agents.schema import Arguments, summary
from outlast.core.limit import Bound
from outlast.core.name import storable_key
from outlast.core.policy import OnExpiry, ToolPolicy
from outlast.core.setting import count_of, one_of, seconds_of
from outlast.errors import InvalidDefinition

V = TypeVar("V")
Function = Callable[..., Any]
Ask = Literal["never", "once", "always"]
Approval = Ask | Callable[[dict[str, Any]], bool]
Key = Callable[[dict[str, Any]], str | int]
Approvers = Callable[[str], bool | Awaitable[bool]]
Remedy = Literal["rerun", "report", "ask", "fail"]
OnInterrupt = Remedy | Function
Dedupe = Literal["call", "session", "tenant"]


class ToolResult(Struct, Generic[V], frozen=True):
    """Shows the model `message` and keeps `value`."""

    message: str
    value: V


class NotDone:
    """What a reconcile function returns for a call that did not happen."""


class Tool:
    """A function with a schema and manners. Made by `@tool`; still callable as it was.

    `callback_secret` says with what a call to one of its signed addresses has to be signed.
    """

    callback_secret: Callable[[str], str] | None = None

    def __init__(
        self,
        function: Function,
        *,
        name: str | None = None,
        description: str | None = None,
        approval: Approval = "never",
        readonly: bool = False,
        idempotent: bool = False,
        idempotency_key: Key | None = None,
        dedupe: Dedupe = "call",
        on_interrupt: OnInterrupt | None = None,
        transactional: bool = False,
        timeout: float = 300.0,
        retry: int = 0,
        lane: str | None = None,
        limit: Limit | None = None,
        answer_within: float | None = None,
        on_expiry: OnExpiry = "deny",
        approvers: Approvers | None = None,
        bar_requester: bool = False,
    ) -> None:
        self.function = function
        self.name = checked_name(name, function)
        self.arguments = Arguments(function, self.name, Context)
        self.spec = ToolSpec(self.name, description or summary(function), self.arguments.schema)
        self.approval = checked_approval(self.name, approval)
        self.idempotency_key = answers_at_once(self.name, "idempotency_key", idempotency_key)
        self.dedupe = one_of(Dedupe, f"dedupe of {self.name}", dedupe)
        self.transactional = transactional
        self.timeout = seconds_of(f"the timeout of {self.name}", timeout)
        self.lane = lane
        self.limit = checked_limit(f"the limit of {self.name}", limit)
        self.approvers = approvers
        self.bar_requester = bar_requester
        self.is_async = inspect.iscoroutinefunction(function)
        repeatable = readonly or idempotent or transactional
        self.on_interrupt = on_interrupt or ("rerun" if repeatable else "report")
        patience = seconds_of(f"answer_within of {self.name}", answer_within or 0, or_none=True)
        self.policy = ToolPolicy(
            on_interrupt=interruption(self.name, self.on_interrupt),
            tries=count_of(f"retry of {self.name}", retry, least=0) + 1,
            answer_within=int(patience * 1000),
            on_expiry=one_of(OnExpiry, f"on_expiry of {self.name}", on_expiry),
            restricted=approvers is not None or bar_requester,
            readonly=readonly and not transactional,
        )
        self._check(repeatable, retry)

    def _check(self, repeatable: bool, retry: int) -> None:
        if retry and not repeatable:
            raise InvalidDefinition(
                f"{self.name} cannot be retried by itself: say readonly=True or idempotent=True"
                " if running it twice does no harm",
                tool=self.name,
            )
        if self.dedupe != "call" and self.idempotency_key is None:
            raise InvalidDefinition(
                f"{self.name} says dedupe={self.dedupe!r} but no idempotency_key: say what makes"
                " two calls the same",
                tool=self.name,
            )
        if self.lane is not None:
            self._check_lane(self.lane)
        if self.transactional and not self.is_async:
            raise InvalidDefinition(f"{self.name} is transactional: make it async", tool=self.name)

    def _check_lane(self, lane: str) -> None:
        try:
            fields = {field for _, field, _, _ in Formatter().parse(lane) if field is not None}
        except (TypeError, ValueError) as error:
            raise InvalidDefinition(f"the lane of {self.name} cannot be read: {error}") from None
        known = self.arguments.schema.get("properties", {})
        if unknown := sorted(fields - known.keys()):
            raise InvalidDefinition(
                f"the lane of {self.name} names {', '.join(unknown)}, and its arguments are"
                f" {', '.join(known) or 'none'}: use these",
                tool=self.name,
            )

    def bounds(self, args: dict[str, Any], tenant: str) -> tuple[Bound, ...]:
        """Return the limits that a call with these arguments is under, by name."""
        if self.lane is None and self.limit is None:
            return ()
        found: list[Bound] = []
        if self.lane is not None:
            key = self.lane.format(**args)
            found.append(Bound(f"lane:{tenant}:{storable_key(key)}", concurrency=1))
        if self.limit is not None:
            found += self.limit.named(f"tool:{self.name}")
        return in_order(found)

    def __repr__(self) -> str:
        return f"Tool({self.name})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def may_be_approved_by(self, who: str, requesters: Collection[str]) -> bool:
        """Say whether somebody may answer for a call that is made for the requesters."""
        if not self.policy.restricted:
            return True
        if not who or (self.bar_requester and who in requesters):
            return False
        if self.approvers is None:
            return True
        said = self.approvers(who)
        return bool(await said if inspect.isawaitable(said) else said)

    def asks(self, args: dict[str, Any]) -> str:
        """Say what kind of approval these arguments need: none, once or always."""
        if callable(self.approval):
            return "always" if self.approval(args) else ""
        return "" if self.approval == "never" else self.approval


def checked_name(name: Any, function: Any) -> str:
    """Return what a tool is called: as was said, or like its function."""
    if not callable(function) or inspect.isclass(function) or not hasattr(function, "__name__"):
        raise InvalidDefinition(
            f"no tool can be made of {function!r}: give a function, if need be one that calls it"
        )
    found = name or function.__name__
    plain = found.replace("_", "").replace("-", "") if isinstance(found, str) else ""
    if not plain.isalnum() or len(found) > 64:
        raise InvalidDefinition(
            f"{found!r} cannot be a tool's name: use letters, digits, _ and -, at most 64"
        )
    return str(found)


def checked_approval(tool: str, approval: Any) -> Any:
    """Return when a human is asked: a word, or a function of the arguments."""
    if callable(approval):
        return answers_at_once(tool, "approval", approval)
    return one_of(Ask, f"approval of {tool}, where it is no function,", approval)


def interruption(tool: str, on_interrupt: Any) -> Any:
    """Return what an interruption means for a tool, in the policy's words."""
    if callable(on_interrupt):
        return "reconcile"
    return one_of(Remedy, f"on_interrupt of {tool}, where it is no function,", on_interrupt)


def answers_at_once(tool: str, what: str, function: Any) -> Any:
    """Return a function of a call's arguments, or none; an async one would never be awaited."""
    call = getattr(function, "__call__", None)  # noqa: B004 - that of an object is looked at too
    if function is not None and (
        call is None or inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    ):
        raise InvalidDefinition(
            f"{what} of {tool} is a function of the arguments, and no async one, not {function!r}",
            tool=tool,
        )
    return function


@overload
def tool(function: Function, /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = "never",
    readonly: bool = False,
    idempotent: bool = False,
    idempotency_key: Key | None = None,
    dedupe: Dedupe = "call",
    on_interrupt: OnInterrupt | None = None,
    transactional: bool = False,
    timeout: float = 300.0,
    retry: int = 0,
    lane: str | None = None,
    limit: Limit | None = None,
    answer_within: float | None = None,
    on_expiry: OnExpiry = "deny",
    approvers: Approvers | None = None,
    bar_requester: bool = False,
) -> Callable[[Function], Tool]: ...


def tool(function: Function | None = None, /, **manners: Any) -> Any:
    """Make a function a tool.

    Its schema comes from the type hints, its description from the docstring. What an
    interruption means for it: `readonly=True` or `idempotent=True` say that it can be run
    again; otherwise the model is told that the outcome is unknown, unless `on_interrupt` says
    "ask", "fail", "rerun" or is a function `reconcile(ctx, args)` that finds out.
    """
    if function is not None:
        return Tool(function)
    return lambda function: Tool(function, **manners)
