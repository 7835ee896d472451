"""Events in a few words, for people."""

from collections.abc import Callable, Mapping
from typing import Any

from outlast.cli.terminal.output import json_line, moment, one_line
from outlast.core.event import Event
from outlast.core.record import UsageSum
from outlast.core.usage import in_figures
from outlast.session.request import call_text

Data = Mapping[str, Any]


def event_line(event: Event) -> str:
    """Return an event on one line: where, when, what, of which call, and its gist."""
    lane = "" if event.lane == "main" else f"{event.lane}: "
    what = event.attempt_id or event.call_id or event.turn
    line = f"{event.offset:>6}  {event.at:%H:%M:%S.%f}"[:-3] + "Z"
    return f"{line}  {event.type:<20} {lane}{what:<12} {gist(event)}".rstrip()


def gist(event: Event) -> str:
    """Return what an event says, short."""
    tell = GISTS.get(event.type, rest)
    about = f" ({event.delivery_id})" if event.delivery_id else ""
    return (one_line(tell(event.data)) + about).strip()


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else json_line(value)


def parts_text(parts: Any) -> str:
    """Return the words of a message; what is not words is named."""
    return "".join(
        part["text"] if part["kind"] == "text" else f"[{part.get('tool') or part['kind']}]"
        for part in parts
        if part["kind"] != "reasoning"
    )


def failure_text(error: Data) -> str:
    return f"{error['code']}: {error['message']}"


def rest(data: Data) -> str:
    return " ".join(f"{name}={value_text(value)}" for name, value in data.items())


def queued(data: Data) -> str:
    if data.get("kind") == "reply":
        said = (data.get("option"), data.get("text"), data.get("args"))
        return f"answers {data['request_id']}: {' '.join(value_text(s) for s in said if s)}"
    return parts_text(data.get("content", ())) or str(data.get("kind", ""))


def usage(data: Data) -> str:
    counts = {name: data.get(name, 0) for name in UsageSum.__struct_fields__}
    used = UsageSum(**{**counts, "model_calls": data.get("model_calls", 1)})
    remote = data.get("remote")
    return f"{f'remote agent {remote}: ' if remote else ''}{in_figures(used)}"


def requested(data: Data) -> str:
    call = call_text(data.get("tool", ""), data.get("args"))
    return f"{data['request_id']} {data['prompt']} {call if data.get('args') else ''}"


def resolved(data: Data) -> str:
    said = (data.get("how", "answered"), data.get("option"), data.get("text"), data.get("args"))
    return f"{data['request_id']} {' '.join(value_text(s) for s in said if s)}"


def unavailable(data: Data) -> str:
    return f"{failure_text(data['error'])}; {next_try(data)}"


def next_try(data: Data) -> str:
    """Say when a provider is asked again, and what to mend meanwhile."""
    hint = data["error"].get("hint")
    return f"tried again at {moment(data['not_before'])}" + (
        f"; to mend it: {hint}" if hint else ""
    )


def refused(data: Data) -> str:
    """Say which checkers refuse an answer, and why."""
    return "; ".join(f"{name}: {reason}" for name, reason in data["reasons"].items())


GISTS: dict[str, Callable[[Data], str]] = {
    "session.waiting": lambda d: f"for {', '.join(d['wait'])}",
    "session.failed": lambda d: failure_text(d["error"]),
    "turn.failed": lambda d: failure_text(d["error"]),
    "turn.completed": lambda d: "",
    "turn.started": lambda d: f"retries {d['retries']}" if d.get("retries") else "",
    "turn.cancelled": lambda d: str(d.get("reason", "")),
    "session.resumed": lambda d: "",
    "step.failed": lambda d: failure_text(d["error"]),
    "delivery.queued": queued,
    "model.retrying": lambda d: failure_text(d["error"]),
    "model.switched": lambda d: f"from {d['left']} to {d['model']}: {failure_text(d['error'])}",
    "provider.unavailable": unavailable,
    "provider.still_unavailable": unavailable,
    "provider.available": lambda d: f"after {d['attempts']} attempts",
    "message.delta": lambda d: d.get("text") or f"[{d.get('tool')}]",
    "reasoning.delta": lambda d: str(d.get("text", "")),
    "message.completed": lambda d: parts_text(d["parts"]),
    "usage.recorded": usage,
    "feedback.given": lambda d: f"{d['name']}: {d['text']}",
    "completion.refused": refused,
    "milestone.reached": lambda d: str(d.get("title", "")),
    "context.restarted": lambda d: f"from {d['milestone']}",
    "context.overflowed": lambda d: failure_text(d["error"]),
    "context.rewound": lambda d: f"to {d['to']}",
    "compaction.completed": lambda d: f"from {d['before']:,} to {d['tokens']:,} tokens",
    "tool.requested": lambda d: call_text(d["tool"], d["args"]),
    "tool.vanished": lambda d: f"{d['tool']}: waits for code that has it",
    "tool.emitted": lambda d: f"{d['name']}: {value_text(d.get('data'))}",
    "tool.progress": lambda d: value_text(d.get("progress")),
    "tool.completed": lambda d: d.get("message") or value_text(d.get("value")),
    "tool.failed": lambda d: failure_text(d["error"]),
    "request.opened": requested,
    "authorization.required": lambda d: f"{d['connection']} {d['url']}",
    "request.resolved": resolved,
}
