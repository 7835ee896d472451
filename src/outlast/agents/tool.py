"""Tools: functions that a model may call, and what their authors say about them.

Owns the decorator `tool`, a tool's schema, and its settings: approval, limits, keys, what an
interruption means. Refuses to know when a call may begin (`core/decide.py`, `engine/start_gate.py`)
and how it is run (`runtime/tool_call.py`).
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from string import Formatter
from typing import Any, Generic, Literal, Protocol, overload

from msgspec import Struct
from typing_extensions import ParamSpec, TypeVar

from outlast.agents.limit import Limit, checked_limit, in_order
from outlast.agents.model.client import ToolSpec
from outlast.agents.resource import KeysOf, Resources, keys_of
from outlast.agents.return_type import ReturnType
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.loop_watch import LoopWatch, answer_of
from outlast.agents.runtime.step import Remedy
from outlast.agents.schema import Arguments, summary
from outlast.core.instant import Span
from outlast.core.limit import Bound
from outlast.core.name import storable_key
from outlast.core.policy import OnExpiry, ToolPolicy
from outlast.core.record import Option
from outlast.core.setting import count_of, names_of, one_of, seconds_of
from outlast.errors import InvalidDefinition

V = TypeVar("V")
P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)
Function = Callable[..., Any]
AskWhen = Literal["never", "once", "always"]
When = AskWhen | Callable[[dict[str, Any]], bool]
Key = Callable[[dict[str, Any]], str | int]
Approvers = Callable[[str], bool | Awaitable[bool]]
OnInterrupt = Remedy | Function
DedupeScope = Literal["session", "tenant"]


class ToolResult(Struct, Generic[V], frozen=True):
    """Shows the model `message` and keeps `value`."""

    message: str
    value: V


class Approval(Struct, frozen=True):
    """When a human is asked about a call, who may answer, and for how long.

    The other settings than `when` also hold for questions about an interrupted call.

    Attributes:
        when: "never", "once" in a session, "always", or a function of the arguments.
        timeout: How long a human has to answer; None is for as long as the turn is open.
        on_expiry: What happens after that: "deny" the call, or "fail" the turn.
        approvers: A function that says whether a principal may answer.
        bar_requester: The people for whom the call is made may not answer.
    """

    when: When = "always"
    timeout: Span | None = None
    on_expiry: OnExpiry = "deny"
    approvers: Approvers | None = None
    bar_requester: bool = False


class DedupeKey(Struct, frozen=True):
    """An idempotency key that is good for more than one call.

    A call whose key was seen before, in the session or in the whole tenant, is not run: it
    returns what the first one returned.
    """

    key: Key
    scope: DedupeScope = "session"


class Tool(Generic[P, R]):
    """A function with a schema and rules for its calls, made by `@tool`. It can still be called."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        approval: When | Approval = "never",
        readonly: bool = False,
        idempotent: bool = False,
        idempotency_key: Key | DedupeKey | None = None,
        on_interrupt: OnInterrupt | None = None,
        transactional: bool = False,
        timeout: Span = 300.0,
        max_attempts: int = 1,
        mutex: str | None = None,
        limit: Limit | None = None,
        reads: Resources | None = None,
        writes: Resources | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        asked = approval if isinstance(approval, Approval) else Approval(approval)
        shared = idempotency_key if isinstance(idempotency_key, DedupeKey) else None
        self.function = function
        self.name = checked_name(name, function)
        self.aliases = tuple(
            checked_alias(alias, function) for alias in names_of(f"aliases of {self.name}", aliases)
        )
        self.first_name = self.aliases[0] if self.aliases else self.name
        self.arguments = Arguments(function, self.name, Context)
        self.returns = ReturnType(self.arguments.returns, unwrapped=(ToolResult,))
        self.spec = ToolSpec(self.name, description or summary(function), self.arguments.schema)
        self.approval = checked_approval(self.name, asked.when)
        key = shared.key if shared else idempotency_key
        self.idempotency_key = answers_at_once(self.name, "idempotency_key", key)
        scope = shared.scope if shared else None
        self.dedupe = scope and one_of(DedupeScope, f"the scope of {self.name}'s key", scope)
        self.transactional = transactional
        self.timeout = seconds_of(f"the timeout of {self.name}", timeout)
        self.mutex = mutex
        self.limit = checked_limit(f"the limit of {self.name}", limit)
        self.has_resources = reads is not None or writes is not None
        self.reads = self._resources("reads", reads)
        self.writes = self._resources("writes", writes)
        self.approvers = asked.approvers
        self.bar_requester = asked.bar_requester
        self.is_async = inspect.iscoroutinefunction(function)
        repeatable = readonly or idempotent or transactional
        self.on_interrupt = on_interrupt or ("rerun" if repeatable else "report")
        what = f"the approval's timeout of {self.name}"
        answer_timeout = seconds_of(what, asked.timeout or 0, or_none=True)
        self.policy = ToolPolicy(
            on_interrupt=interruption(self.name, self.on_interrupt),
            max_attempts=count_of(f"max_attempts of {self.name}", max_attempts),
            answer_timeout=int(answer_timeout * 1000),
            on_expiry=one_of(OnExpiry, f"on_expiry of {self.name}", asked.on_expiry),
            restricted=asked.approvers is not None or asked.bar_requester,
            readonly=readonly and not transactional,
        )
        self._check(repeatable)

    def _check(self, repeatable: bool) -> None:
        if self.policy.max_attempts > 1 and not repeatable:
            raise InvalidDefinition(
                f"{self.name} cannot be retried by itself: say readonly=True or idempotent=True"
                " if running it twice does no harm",
                tool=self.name,
            )
        if self.dedupe and self.idempotency_key is None:
            raise InvalidDefinition(
                f"the DedupeKey of {self.name} has no key: say what makes two calls the same",
                tool=self.name,
            )
        if self.mutex is not None:
            self._check_mutex(self.mutex)
        if self.transactional and not self.is_async:
            raise InvalidDefinition(f"{self.name} is transactional: make it async", tool=self.name)

    def _resources(self, what: str, given: Any) -> KeysOf:
        if callable(given):
            answers_at_once(self.name, what, given)
        return keys_of(self.name, what, given, self.arguments.schema.get("properties", {}))

    def _check_mutex(self, mutex: str) -> None:
        try:
            fields = {field for _, field, _, _ in Formatter().parse(mutex) if field is not None}
        except (TypeError, ValueError) as error:
            raise InvalidDefinition(f"the mutex of {self.name} cannot be read: {error}") from None
        known = self.arguments.schema.get("properties", {})
        if unknown := sorted(fields - known.keys()):
            raise InvalidDefinition(
                f"the mutex of {self.name} names {', '.join(unknown)}, and its arguments are"
                f" {', '.join(known) or 'none'}: use these",
                tool=self.name,
            )

    def bounds(self, args: dict[str, Any], tenant: str) -> tuple[Bound, ...]:
        """Return the limits that a call with these arguments is under, by name."""
        if self.mutex is None and self.limit is None:
            return ()
        found: list[Bound] = []
        if self.mutex is not None:
            key = self.mutex.format(**args)
            found.append(Bound(f"mutex:{tenant}:{storable_key(key)}", concurrency=1))
        if self.limit is not None:
            found += self.limit.named(f"tool:{self.name}")
        return in_order(found)

    def __repr__(self) -> str:
        return f"Tool({self.name})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def misfit(self, called: str, args: str) -> str:
        """Return why a call cannot be run with these arguments: both forms, for a human."""
        try:
            self.arguments.parse(args)
        except Exception as error:  # noqa: BLE001 - the arguments', or the user's own validators'
            return (
                f"{error}. It was asked for as {called}({args}), and now it is"
                f" {self.name}({self.arguments.form}): approve it with other arguments, or deny it."
            )
        return ""

    def asks(self, args: dict[str, Any]) -> str:
        """Say what kind of approval these arguments need: none, once or always."""
        if callable(self.approval):
            return "always" if self.approval(args) else ""
        return "" if self.approval == "never" else self.approval


async def may_approve(
    tool: Tool[Any, Any], who: str, requesters: Collection[str], watch: LoopWatch | None = None
) -> bool:
    """Say whether a principal may answer for a call that was made for the requesters."""
    if not tool.policy.restricted:
        return True
    if not who or (tool.bar_requester and who in requesters):
        return False
    if tool.approvers is None:
        return True
    return bool(await answer_of(watch, tool.approvers, who, approvers=tool.name))


class Decorator(Protocol):
    """The decorator that `tool(…)` returns; it keeps the function's own signature."""

    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]: ...


def checked_name(name: Any, function: Any, what: str = "tool") -> str:
    """Return what a tool or a workflow is called: as was said, or like its function."""
    if not callable(function) or inspect.isclass(function) or not hasattr(function, "__name__"):
        raise InvalidDefinition(
            f"no {what} can be made of {function!r}: give a function, if need be one that calls it"
        )
    found = name or function.__name__
    plain = found.replace("_", "").replace("-", "") if isinstance(found, str) else ""
    if not plain.isalnum() or len(found) > 64:
        raise InvalidDefinition(
            f"{found!r} cannot be a {what}'s name: use letters, digits, _ and -, at most 64"
        )
    return str(found)


def checked_alias(alias: str, function: Any) -> str:
    """Return a name that a tool had before."""
    if not alias:  # as a tool's name it would stand for that of the function
        raise InvalidDefinition("an alias of a tool has to be a name, not an empty one")
    return checked_name(alias, function)


def checked_approval(tool: str, approval: Any) -> Any:
    """Return when a human is asked: a word, or a function of the arguments."""
    if callable(approval):
        return answers_at_once(tool, "approval", approval)
    return one_of(AskWhen, f"approval of {tool}, if it is not a function,", approval)


def interruption(tool: str, on_interrupt: Any) -> Any:
    """Return what an interruption means for a tool, in the policy's words."""
    if callable(on_interrupt):
        return "reconcile"
    return one_of(Remedy, f"on_interrupt of {tool}, if it is not a function,", on_interrupt)


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
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: When | Approval = "never",
    readonly: bool = False,
    idempotent: bool = False,
    idempotency_key: Key | DedupeKey | None = None,
    on_interrupt: OnInterrupt | None = None,
    transactional: bool = False,
    timeout: Span = 300.0,
    max_attempts: int = 1,
    mutex: str | None = None,
    limit: Limit | None = None,
    reads: Resources | None = None,
    writes: Resources | None = None,
    aliases: Sequence[str] = (),
) -> Decorator: ...


def tool(function: Function | None = None, /, **options: Any) -> Any:
    """Make a function a tool. The schema comes from its type hints and its docstring.

    Keyword Args:
        name (str): The tool's name; by default the function's.
        description (str): What the model is told; by default the docstring without `Args:`.
        approval (When | Approval): "never", "once", "always", a function of the arguments, or an
            `Approval`.
        readonly (bool): It changes nothing: it begins without waiting for a commit, and is run
            again.
        idempotent (bool): Running it twice does no harm: it is run again after an interruption.
        idempotency_key (Key | DedupeKey): A function of the arguments: calls with the same key are
            the same; with a `DedupeKey` only the first one runs.
        on_interrupt (OnInterrupt): What follows an interruption: "report" tells the model that the
            outcome is unknown (the default), "rerun", "ask" a human, "fail" the turn, or a function
            `reconcile(ctx, args)` that finds out.
        transactional (bool): Gives the tool `ctx.tx`, a transaction with the record of its outcome.
        timeout (Span): After it the call counts as interrupted.
        max_attempts (int): Tries of a call that fails, the first included.
        mutex (str): A text with arguments in braces: calls in a tenant for which it reads the same
            run one at a time.
        limit (Limit): Bounds the calls of the tool, across sessions and workers.
        reads (Resources): The arguments that name the resources which a call reads, or a function
            of the arguments; for policies (`outlast.rules`).
        writes (Resources): The same for resources that it writes.
        aliases (Sequence[str]): Names that the tool had before, the oldest first. Open calls under
            one of them go on with this tool; idempotency keys stay those of the oldest name.
    """
    if function is not None:
        return Tool(function)
    return lambda function: Tool(function, **options)


@tool(readonly=True)
async def ask_question(ctx: Context[Any], question: str, options: list[str] | None = None) -> str:
    """Ask the human a question and wait for the answer.

    Args:
        question: What you want to know.
        options: Answers to choose from, if there are only a few.
    """
    # The model reads this docstring. Where no human can be asked, it is not offered the tool.
    answer = await ctx.ask(question, [Option(o, o) for o in options or ()])
    return answer.text or answer.option
