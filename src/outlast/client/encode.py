"""Turns arguments into the server's requests, with the checks of an app in this process.

What is wrong is refused before anything is sent, by the same error as without a wire. Knows no
route and no connection. The other direction is `decode.py`.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from outlast.agents.agent import Agent
from outlast.agents.budget import Budget
from outlast.clock import Clock
from outlast.core.instant import milliseconds, rfc3339
from outlast.core.json_text import parse_json
from outlast.core.message import Said, Text, content_of
from outlast.core.name import check_id
from outlast.core.record import SliceValue, StateChangeRequested
from outlast.core.tag import check_tags
from outlast.errors import InvalidAnswer
from outlast.session.inbox import instant_of
from outlast.session.listing import check_failed
from outlast.session.queue import QueueEntry, checked_entry
from outlast.session.retry import check_retry_failed
from outlast.session.start import NewSession, Webhook
from outlast.store.clock import LocalStoreClock


def message_out(message: Said) -> Any:
    """Return a message as JSON has it: a text, or a list of parts."""
    content = content_of(message)
    if isinstance(message, str):
        return message
    return [part_out(part) for part in content]


def part_out(part: Any) -> Any:
    if isinstance(part, Text):
        return {"kind": "text", "text": part.text}
    return msgspec.to_builtins(part)


def dispatch_out(dispatch_id: str | None, clock: Clock) -> str:
    """Return the name under which something is sent, which makes it safe to send it again."""
    return clock.new_id("dsp") if dispatch_id is None else check_id("dispatch_id", dispatch_id)


def retry_failed_out(retry_failed: bool, dispatch_id: str | None) -> dict[str, Any]:
    """Return whether what was sent before is tried again, where that is so."""
    if retry_failed:
        check_retry_failed(dispatch_id)
    return {"retry_failed": True} if retry_failed else {}


def deadline_out(
    deadline: datetime | timedelta | None, clock: Clock, dispatch_id: str | None
) -> str | None:
    """Return a deadline as an instant in UTC."""
    if deadline is None:
        return None
    milliseconds = instant_of(deadline, LocalStoreClock(clock), dispatch_id)
    instant = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return instant.isoformat(timespec="milliseconds")


def start_out(new: NewSession, clock: Clock) -> dict[str, Any]:
    """Return a start as the server takes it."""
    return retry_failed_out(new.retry_failed, new.dispatch_id) | some(
        agent=new.agent,
        message=message_out(new.message),
        mode=new.mode,
        dispatch_id=dispatch_out(new.dispatch_id, clock),
        continuation_token=new.continuation_token,
        lane=check_id("lane", new.lane),
        capabilities=new.capabilities,
        deadline=deadline_out(new.deadline, clock, new.dispatch_id),
        budget=budget_out(new.budget) if new.budget else None,
        webhook=webhook_out(new.webhook) if new.webhook else None,
        depth=new.depth or None,
        tags=check_tags(new.tags) or None,
        queue=queue_out(new.queue) if new.queue else None,
    )


def queue_out(said: str | QueueEntry) -> dict[str, Any]:
    entry = checked_entry(said)
    delay = None if entry.delay is None else milliseconds(entry.delay) / 1000
    return some(name=entry.name, key=entry.key or None, priority=entry.priority, delay=delay)


def budget_out(budget: Budget) -> dict[str, Any]:
    """Return a budget as the server takes it."""
    terms = budget.terms
    return some(
        tokens=budget.tokens,
        usd=None if budget.usd is None else str(budget.usd),
        model_calls=budget.model_calls,
        tool_calls=budget.tool_calls,
        wall_time=None if budget.wall_time is None else terms.limits.wall_ms / 1000,
        steps=budget.steps,
        on_end=budget.on_end,
        unpriced=budget.unpriced,
    )


def webhook_out(webhook: Webhook) -> dict[str, Any]:
    return some(url=webhook.url, events=webhook.events, secret=webhook.secret or None)


def name_of(agent: Agent[Any, Any] | str) -> str:
    return agent if isinstance(agent, str) else agent.name


def type_of(agent: Agent[Any, Any] | str | None, output_type: Any) -> Any:
    """Return the type of an agent's outputs: the one that was given, or the agent's own."""
    return output_type or (agent.output_type if isinstance(agent, Agent) else None)


def check_answered(request_id: str, option: str | None, text: str | None) -> None:
    if option is None and text is None:
        raise InvalidAnswer("an answer needs an option or a text", request=request_id)


def some(**fields: Any) -> dict[str, Any]:
    """Return those fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def failure_out(
    failed: bool, code: str | None, since: datetime | timedelta | None, clock: Clock
) -> dict[str, Any]:
    """Return which failures are looked for; a timedelta is so long ago by the clock here."""
    sought = check_failed(failed, code, since, None, LocalStoreClock(clock))
    if sought is None:
        return {}
    at = rfc3339(sought.since) if sought.since else None
    return some(failed="true", code=sought.code, since=at)


def change_out(change: StateChangeRequested) -> dict[str, Any]:
    """Return a change of state as the server takes it."""
    slices = {
        name: {"values": [value_out(each) for each in values], "log": name in change.logs}
        for name, values in change.slices.items()
    }
    return some(
        op=change.op,
        slice=change.slice or None,
        event=change.event or None,
        values=[value_out(each) for each in change.values],
        slices=slices if change.op == "rollback" else None,
    )


def value_out(value: SliceValue) -> dict[str, Any]:
    return {"value": parse_json(value.text), "version": value.version}
