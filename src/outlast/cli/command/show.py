"""`outlast show`: all about one session."""

from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from outlast.cli.terminal.event_line import failure_text
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    AsRaw,
    SessionId,
    StoreUrl,
    open_place,
)
from outlast.cli.terminal.output import fields, flat, json_out, moment, one_line, out, table
from outlast.cli.terminal.prompt import option_text
from outlast.cli.terminal.run import command
from outlast.core import record as r
from outlast.core.lane import PROVIDER
from outlast.core.message import text_of
from outlast.core.tag import tag_text
from outlast.core.usage import TreeUsage, in_figures
from outlast.log.reader import Outcome, read_outcome
from outlast.session import Request, WaitingFor
from outlast.session.request import request_lines
from outlast.session.waiting import in_words, read_waiting
from outlast.store import SessionInfo, Store


class LogSummary(Struct):
    """Facts that only the log has: the lanes' waits, the queued messages."""

    waits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    queue: dict[str, str] = field(default_factory=dict)

    def see(self, lane: str, e: r.AnyRecord) -> None:
        match e:
            case r.SessionWaiting():
                self.waits[lane] = e.wait
            case r.SessionResumed() | r.LaneTakenOver():
                self.waits.pop(lane, None)
            case r.DeliveryQueued() if e.kind != "reply":
                self.queue[e.delivery_id] = text_of(e.content) or e.kind
            case r.TurnStarted():
                self.waits.pop(lane, None)
                self.queue.pop(e.delivery_id, None)
            case r.DeliveryJoined() | r.DeliverySettled():
                self.queue.pop(e.delivery_id, None)


@command
async def show(
    session: SessionId, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False, raw: AsRaw = False
) -> None:
    """Show all about one session.

    Its status, what it waits for, its open requests, lanes, queue, cost and last answer.

    Example: outlast show ses_01J9ZK…
    """
    async with open_place(store) as app:
        handle = await app.session(session)
        info, requests = await handle.info(), await handle.requests()
        told = await read_all(app.store, session)
        last = await read_outcome(app.store, session, info.end + 1, lambda _: True)
        waiting = await read_waiting(app.store, info)
        usage = await handle.usage()
        if as_json:
            more = {"usage": plain_usage(usage), "waiting_for": waiting}
            json_out({**plain(info, requests, told, last), **more})
        else:
            show_all(info, requests, told, last, waiting, usage)


async def read_all(store: Store, session_id: str) -> LogSummary:
    told, cursor = LogSummary(), 0
    while (page := await store.log.read(session_id, cursor)).entries:
        for entry in page.entries:
            told.see(entry.lane, entry.record)
        cursor = page.cursor
    return told


def plain(
    info: SessionInfo, requests: tuple[Request, ...], told: LogSummary, last: Outcome | None
) -> dict[str, Any]:
    lanes = [{**asdict(lane), "waits_for": told.waits.get(lane.lane, ())} for lane in info.lanes]
    queue = [{"delivery_id": name, "text": text} for name, text in told.queue.items()]
    values = asdict(info)
    token = values.pop("token")
    return {
        **values,
        "failure": info.failure,
        "lanes": lanes,
        "requests": requests,
        "queue": queue,
        "last_turn": asdict(last) if last else None,
        "continuation_token": token,
    }


def plain_usage(usage: TreeUsage) -> dict[str, Any]:
    return {"own": asdict(usage.own), "total": asdict(usage.total)}


def show_all(
    info: SessionInfo,
    requests: tuple[Request, ...],
    told: LogSummary,
    last: Outcome | None,
    waiting: WaitingFor | None,
    usage: TreeUsage,
) -> None:
    pairs = [
        ("session", info.session_id),
        ("agent", f"{info.agent} ({info.mode})"),
        ("status", info.status),
        ("tags", flat(", ".join(tag_text(*tag) for tag in info.tags.items()))),
        ("failed", failure_line(info)),
        ("waits for", wait_line(info, told, waiting)),
        ("started", moment(info.created_at)),
        ("changed", f"{moment(info.updated_at)}, at offset {info.end}"),
        ("used", in_figures(usage.own)),
        ("with children", in_figures(usage.total) if usage.total != usage.own else ""),
    ]
    fields([(name, value) for name, value in pairs if value])
    if len(info.lanes) > 1:
        heading("lanes")
        rows = [(n.lane, n.status, n.turn or "-", str(n.queued)) for n in info.lanes]
        table(("LANE", "STATUS", "TURN", "QUEUED"), rows)
    if requests:
        heading("open requests")
        for request in requests:
            show_request(request)
    if told.queue:
        heading("queue")
        fields([(name, one_line(text, 80)) for name, text in told.queue.items()])
    if last:
        heading(f"last turn: {last.turn} {last.how}")
        out(answer_text(last))


def failure_line(info: SessionInfo) -> str:
    """Say why the last turn failed and since when."""
    failure = info.failure
    return f"{failure.code} since {moment(failure.since)}" if failure else ""


def wait_line(info: SessionInfo, told: LogSummary, waiting: WaitingFor | None) -> str:
    """Say what the session waits for; of a provider with its error, since when and what to mend."""
    if waiting and waiting.kind == PROVIDER:
        is_own = waiting.session_id == info.session_id
        whose = "" if is_own else f"its child {waiting.session_id}, which waits for "
        return flat(whose + in_words(waiting))
    return ", ".join(waits_for(info, told))


def waits_for(info: SessionInfo, told: LogSummary) -> list[str]:
    """Name what the lanes wait for that have nothing to go on with."""
    resting = [n.lane for n in info.lanes if n.status in ("idle", "waiting", "sleeping", "failed")]
    return list(dict.fromkeys(wait for lane in resting for wait in told.waits.get(lane, ())))


def heading(text: str) -> None:
    out("")
    out(text, "bold")


def show_request(request: Request) -> None:
    first, *more = request_lines(request)
    out(f"{request.request_id}  {first}")
    for line in more:
        out(f"    {line}")
    takes = [option_text(option) for option in request.options]
    takes += ["--text …"] if request.allow_freeform else []
    takes += ["approve --args JSON"] if request.kind == "approval" else []
    until = f" (until {moment(request.expires_at)})" if request.expires_at else ""
    out(f"  answer with: {' | '.join(takes)}{until}", "dim")


def answer_text(last: Outcome) -> str:
    if last.error:
        return failure_text({"code": last.error.code, "message": last.error.message})
    return last.output if last.output is not None else last.text
