"""The rules of one agent, by kind, and the checks of its list of them.

Owns in which order rules are asked, and which lists are refused: two of one name, tools that wait
for each other. What a rule is stands in `rule.py`; `runtime/rule_run.py` runs them.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from outlast.agents.resource import no_keys
from outlast.agents.rule import (
    CallPolicy,
    CompletionChecker,
    Every,
    FeedbackProvider,
    FunctionPolicy,
    ReadBeforeWrite,
    SequentialDependency,
)
from outlast.agents.tool import Tool
from outlast.core.done_call import DoneCall, note_of
from outlast.core.instant import milliseconds
from outlast.core.lane import Lane
from outlast.core.name import check_id
from outlast.core.policy import FeedbackTrigger
from outlast.core.record import StateChanged
from outlast.core.setting import listed, seconds_of
from outlast.core.slice import Slices
from outlast.errors import InvalidDefinition


class RuleSet(Struct, frozen=True):
    """An agent's rules, each kind in the order in which they are asked."""

    policies: tuple[CallPolicy, ...] = ()
    feedback: tuple[FeedbackProvider, ...] = ()
    checkers: tuple[CompletionChecker, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.policies or self.feedback or self.checkers)

    @property
    def triggers(self) -> tuple[FeedbackTrigger, ...]:
        """When each feedback provider is due, as `decide` needs it."""
        return tuple(
            FeedbackTrigger(each.name, each.every.calls, span_of(each.every))
            for each in self.feedback
        )

    @property
    def checker_names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.checkers)

    def note(
        self, tool: Tool, args: dict[str, Any], lane: Lane, slices: Slices
    ) -> StateChanged | None:
        """Return the record by which rules know of a call that succeeds, if one is needed."""
        if self.is_empty:
            return None
        call = DoneCall(tool.name, lane.name, tool.reads(args), tool.writes(args))
        return note_of(call, slices)


def span_of(every: Every) -> int:
    """Return the time between two times in milliseconds; 0 if time does not count."""
    return max(1, milliseconds(every.seconds)) if every.seconds else 0


def checked_rules(agent: str, given: Any, tools: Mapping[str, Tool]) -> RuleSet:
    """Return an agent's rules, if each can be told from the others and can have an effect."""
    rules = listed(f"the rules of agent {agent}", given)
    names: set[str] = set()
    for rule in rules:
        name = checked_rule(agent, rule, tools)
        if name in names:
            raise InvalidDefinition(
                f"agent {agent} has two rules named {name}: give one another name", agent=agent
            )
        names.add(name)
    check_order(agent, [each for each in rules if isinstance(each, SequentialDependency)])
    return RuleSet(
        tuple(each for each in rules if isinstance(each, CallPolicy)),
        tuple(each for each in rules if isinstance(each, FeedbackProvider)),
        tuple(each for each in rules if isinstance(each, CompletionChecker)),
    )


def checked_rule(agent: str, rule: Any, tools: Mapping[str, Tool]) -> str:
    """Return a rule's name, if it is one."""
    if isinstance(rule, type) or not isinstance(
        rule, CallPolicy | FeedbackProvider | CompletionChecker
    ):
        raise InvalidDefinition(
            f"{rule!r} is no rule of agent {agent}: a rule has a name and one of refuse(call),"
            " advise(turn) with every=Every(…), and missing(turn); @policy, @feedback and"
            " @completion make one of a function",
            agent=agent,
        )
    name = check_id("name of a rule", rule.name)
    if hasattr(rule, "timeout"):
        seconds_of(f"the timeout of the rule {name}", rule.timeout)
    if isinstance(rule, FeedbackProvider) and not isinstance(rule.every, Every):
        raise InvalidDefinition(f"the rule {name} has no every=Every(…)", agent=agent)
    match rule:
        case SequentialDependency():
            check_names(agent, name, (rule.tool, *rule.needed), tools)
        case FunctionPolicy():
            check_names(agent, name, sorted(rule.tools), tools)
        case ReadBeforeWrite() if inspect.iscoroutinefunction(rule.exists):
            raise InvalidDefinition(
                f"exists of the rule {name} is no async function: it is called in a thread",
                agent=agent,
            )
        case ReadBeforeWrite() if all(each.writes is no_keys for each in tools.values()):
            raise InvalidDefinition(
                f"the rule {name} has nothing to look at: no tool of agent {agent} says what it"
                ' writes; say it with @tool(writes="argument")',
                agent=agent,
            )
    return name


def check_names(agent: str, rule: str, names: Any, tools: Mapping[str, Tool]) -> None:
    if unknown := [str(name) for name in names if name not in tools]:
        raise InvalidDefinition(
            f"the rule {rule} names {', '.join(unknown)}, and agent {agent} has the tools"
            f" {', '.join(tools) or 'none'}: use these",
            agent=agent,
        )


def check_order(agent: str, rules: list[SequentialDependency]) -> None:
    """Refuse tools that wait for each other: none of them could ever be called."""
    needs: dict[str, set[str]] = {}
    for rule in rules:
        needs.setdefault(rule.tool, set()).update(rule.needed)
    for tool in needs:
        seen, left = set[str](), [*needs[tool]]
        while left:
            if (name := left.pop()) not in seen:
                seen.add(name)
                left += needs.get(name, ())
        if tool in seen:
            raise InvalidDefinition(
                f"{tool} of agent {agent} could never be called: it must come after itself",
                agent=agent,
            )
