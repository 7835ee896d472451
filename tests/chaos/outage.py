"""A provider that is away for a while, in one of many ways, while workers are killed.

Tasks and conversations begin before and during the outage; all of them have to end well, with the
answers whole, nothing refused and nothing that was recorded asked for again. What reaches the
provider meanwhile is counted.

`python -m chaos.outage URL LEDGER LEASE` is one of its workers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from chaos.fleet import Fleet
from chaos.ledger import Ledger
from chaos.place import Place, opened
from chaos.run import read_log
from chaos.worker import serve_as_worker
from outlast import Agent, Context, ModelOptions, Outlast, Receipt, Session, tool
from outlast.core import record as r
from outlast.core.record import Entry
from outlast.core.view import GO_ON
from outlast.log.verify import verify
from outlast.testing import ScriptedModel
from outlast.testing.provider_server import (
    ConnectionsRefused,
    ErrorStatus,
    NoAnswer,
    ReceivedCall,
    StreamsCut,
    WireOutage,
    WireReply,
    WireServer,
    call,
    openai_model,
    reply,
    words,
)

NAME = "clerk"
KINDS: dict[str, WireOutage] = {
    "refused": ConnectionsRefused(),
    "500": ErrorStatus(500),
    "503": ErrorStatus(503),
    "429": ErrorStatus(429, headers={"Retry-After": "15"}),
    "cut": StreamsCut(),
    "silent": NoAnswer(),
    "401": ErrorStatus(401),
    "403": ErrorStatus(403),
    "404": ErrorStatus(404),
}
"""How the provider can be away."""
BLOCKED = ("401", "403", "404")
"""Those that somebody has to mend: they are tried once a minute."""
CALLS_PER_LANE = 1
"""How many calls of each lane reach the provider while it is away, on average, at most: most lanes
learn from others that it is, those that call it do so before, and one at a time probes it."""
FAILED = (r.ModelRetrying, r.ProviderUnavailable, r.ProviderStillUnavailable)
"""What is recorded of a call that came to nothing."""
CHUNKS = 16
TOLD_LATE = 0.1
"""Seconds by which the store's time and the provider's may differ."""


class OutageSettings(Struct, frozen=True, kw_only=True):
    """How a run goes. Durations are seconds."""

    store: str
    kind: str
    tasks: int = 50
    conversations: int = 20
    seconds: float = 6.0
    seed: int = 0
    workers: int = 2
    kills: int = 2
    max_attempts: int = 4
    timeout: float = 180.0


class OutageReport(Struct, kw_only=True):
    """What came of a run: `calls` reached the provider while it was away, `tries` were made.

    `cut` calls were cut off with their worker: those are made again, once for each kill.
    """

    store: str
    kind: str
    lanes: int = 0
    calls: int = 0
    tries: int = 0
    cut: int = 0
    parked: int = 0
    wrong: list[str] = []

    def __str__(self) -> str:
        found = f"{len(self.wrong) or 'nothing'} found wrong"
        calls = f"{self.calls} calls reached it, {self.tries} failed, {self.cut} were cut off"
        lanes = f"{self.parked} of {self.lanes} lanes were parked"
        return f"{self.store}: provider away ({self.kind}): {calls}, {lanes}: {found}"


# The agent, and the provider's side of it


class ClerkSettings(Struct, frozen=True, kw_only=True):
    """What all processes of a run know of the agent: where its provider is, and how it is tried."""

    provider: str
    max_attempts: int
    idle_timeout: float


def clerk(known: ClerkSettings) -> Agent[Any, Any]:
    @tool(idempotent=True)
    async def note(ctx: Context[Any], item: str) -> str:
        """Write something down."""
        return f"noted {item}"

    options = ModelOptions(max_attempts=known.max_attempts, idle_timeout=known.idle_timeout)
    return Agent(NAME, openai_model(known.provider), tools=[note], model_options=options)


def whole_answer(text: str) -> str:
    return f"To {text}: " + "and so on, " * 15 + f"that was {text}."


class Conversation(Struct, frozen=True):
    """A request as the provider understands it.

    `first` is the first message, which no other session has; `asked` the last one, `said` what the
    model has said to it before it was cut off, `step` how many whole answers there are before.
    """

    first: str
    asked: str
    said: str
    step: int
    has_result: bool


def conversation_of(received: ReceivedCall) -> Conversation:
    messages = received.body["messages"]
    users = [m["content"] for m in messages if m["role"] == "user" and m["content"] != GO_ON]
    goes_on = sum(m["role"] == "user" and m["content"] == GO_ON for m in messages)
    latest = max(n for n, m in enumerate(messages) if m["content"] == users[-1])
    after = messages[latest + 1 :]
    said = [m["content"] for m in after if m["role"] == "assistant" and not m.get("tool_calls")]
    answers = sum(m["role"] == "assistant" for m in messages)
    has_result = any(m["role"] == "tool" for m in after)
    return Conversation(users[0], users[-1], "".join(said), answers - goes_on, has_result)


def answer(received: ReceivedCall) -> WireReply | ErrorStatus:
    """Note down what a task is about, then answer; go on where an answer was cut off."""
    asked = conversation_of(received)
    if asked.asked.startswith("task") and not asked.has_result:
        return reply(call("note", '{"item": ', f'"{asked.asked}"', "}"))
    whole = whole_answer(asked.asked)
    if not whole.startswith(asked.said):
        return ErrorStatus(400, f"no model has said {asked.said!r}")
    rest = whole.removeprefix(asked.said)  # empty, if only the end of the stream was missing
    size = max(1, len(rest) // CHUNKS)
    return reply(words(*(rest[at : at + size] for at in range(0, len(rest), size))))


# The run


class OutageRun:
    """The director: people write, the provider goes and comes back, workers die."""

    def __init__(
        self, settings: OutageSettings, directory: Path, place: Place, provider: WireServer
    ) -> None:
        self._settings = settings
        self._place = place
        self._provider = provider
        self._ledger = Ledger(directory / "ledger.jsonl")
        self._chance = Random(settings.seed)
        self._receipts: dict[str, Receipt[Any]] = {}
        self._sessions: dict[str, Session[Any]] = {}
        self._report = OutageReport(store=settings.store, kind=settings.kind)

    async def run(self) -> OutageReport:
        known = ClerkSettings(
            provider=self._provider.url,
            max_attempts=self._settings.max_attempts,
            idle_timeout=2.0 if self._settings.kind == "silent" else 120.0,
        )
        settings_file(self._ledger.path).write_bytes(msgspec.json.encode(known))
        fleet = Fleet(self._place, self._ledger.path, program="chaos.outage")
        writer: Agent[Any, Any] = Agent(NAME, ScriptedModel([]))  # this process asks no model
        async with Outlast([writer], store=self._place.url, worker=None) as app, fleet:
            await asyncio.gather(*(fleet.start() for _ in range(self._settings.workers)))
            await self._live_through(app, fleet)
            await self._until_answered()
            await self._look(app)
            await fleet.dismiss()
            self._report.wrong += fleet.trouble
        return self._report

    async def _live_through(self, app: Outlast, fleet: Fleet) -> None:
        settings = self._settings
        tasks = [f"task {number}" for number in range(settings.tasks)]
        talks = [f"talk {number}" for number in range(settings.conversations)]
        early = settings.tasks // 3
        await self._start_all(app, [*tasks[:early], *talks])
        await self._provider.go_away(KINDS[settings.kind])
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_each(fleet))
            group.create_task(self._write(app, tasks[early:], talks))
            await asyncio.sleep(settings.seconds)
            await self._provider.come_back()
        for name in talks:
            await self._send(name, f"{name}, at last")

    async def _start_all(self, app: Outlast, names: list[str]) -> None:
        async def start(name: str) -> None:
            mode: Any = "task" if name.startswith("task") else "conversation"
            session = await app.start(NAME, name, dispatch_id=name, mode=mode)
            assert session.receipt is not None
            self._sessions[name], self._receipts[name] = session, session.receipt

        await asyncio.gather(*(start(name) for name in names))

    async def _send(self, name: str, text: str) -> None:
        self._receipts[text] = await self._sessions[name].send(text, dispatch_id=text)

    async def _write(self, app: Outlast, tasks: list[str], talks: list[str]) -> None:
        """Start tasks, and write to conversations, all over the outage."""
        pause = self._settings.seconds * 0.8 / max(1, len(tasks) + len(talks))
        todo = [*tasks, *talks]
        self._chance.shuffle(todo)
        for name in todo:
            if name in self._sessions:
                await self._send(name, f"{name}, once more")
            else:
                await self._start_all(app, [name])
            await asyncio.sleep(self._chance.uniform(0.0, 2 * pause))

    async def _kill_each(self, fleet: Fleet) -> None:
        """Kill one worker after the other during the outage, and start another in its place."""
        for member in fleet.members[: self._settings.kills]:
            await asyncio.sleep(self._settings.seconds * self._chance.uniform(0.1, 0.35))
            await fleet.kill(member)
            await fleet.start()

    async def _until_answered(self) -> None:
        """Wait for every answer, and hold it against what it should be."""
        texts = [*self._receipts]
        waiting = [asyncio.create_task(self._receipts[text].result()) for text in texts]
        _, late = await asyncio.wait(waiting, timeout=self._settings.timeout)
        for text, task in zip(texts, waiting, strict=True):
            if task in late:
                task.cancel()
                self._wrong(f"{text!r} was not answered")
                continue
            result = task.result()
            if result.status != "completed" or result.output != whole_answer(text):
                self._wrong(f"{text!r} came to {result!r}")

    # What is left

    async def _look(self, app: Outlast) -> None:
        asked = AskedSteps(self._provider.requests)
        for name, session in self._sessions.items():
            entries = await read_log(app.store, session.id)
            for finding in await verify(app.store, session.id):
                self._wrong(str(finding))
            for wrong in (*wrong_in(entries), *asked.wrong_in(name, entries)):
                self._wrong(f"{name}: {wrong}")
            self._count(entries)
        report = self._report
        report.lanes = len(self._sessions)
        report.calls = sum(received.while_away for received in self._provider.requests)
        most = CALLS_PER_LANE * report.lanes
        if max(report.calls - report.cut, report.tries) > most:
            self._wrong(f"a provider that was away was called more than {most} times: {report}")

    def _count(self, entries: tuple[Entry, ...]) -> None:
        records = [entry.record for entry in entries]
        tries = [e for e in records if isinstance(e, FAILED) and getattr(e, "asked", True)]
        self._report.tries += len(tries)
        away_at = [received.at for received in self._provider.requests if received.while_away]
        if away_at:
            since, until = min(away_at) - TOLD_LATE, max(away_at) + TOLD_LATE
            self._report.cut += cut_off_in(entries, 1000 * since, 1000 * until)
        self._report.parked += any(isinstance(e, r.ProviderUnavailable) for e in records)

    def _wrong(self, what: str) -> None:
        self._report.wrong.append(what)


def cut_off_in(entries: Sequence[Entry], since: float, until: float) -> int:
    """Count the model calls made between two instants, under way when the lane was taken over."""
    cut, began_at = 0, 0
    for entry in entries:
        if isinstance(entry.record, r.LaneTakenOver):
            cut += since <= began_at <= until
            began_at = 0
        elif isinstance(entry.record, r.ModelStarted):
            began_at = entry.at
        elif isinstance(entry.record, (*FAILED, r.MessageCompleted)):
            began_at = 0
    return cut


class AskedSteps:
    """When the provider was asked for which answer of which session."""

    def __init__(self, requests: list[ReceivedCall]) -> None:
        self._asked: dict[str, list[tuple[int, float]]] = {}
        for received in requests:
            asked = conversation_of(received)
            self._asked.setdefault(asked.first, []).append((asked.step, received.at))

    def wrong_in(self, name: str, entries: tuple[Entry, ...]) -> Iterator[str]:
        """Tell of answers that were asked for when they were in the log."""
        recorded = [e.at / 1000 for e in entries if isinstance(e.record, r.MessageCompleted)]
        for step, at in self._asked.get(name, []):
            if step < len(recorded) and at > recorded[step] + TOLD_LATE:
                yield f"answer {step} was asked for {at - recorded[step]:.1f} s after it was known"


def wrong_in(entries: tuple[Entry, ...]) -> Iterator[str]:
    """Tell what one log has of things that no outage may cause."""
    is_away = False
    for entry in entries:
        match entry.record:
            case r.ProviderUnavailable() | r.ProviderAvailable():
                was_away, is_away = is_away, isinstance(entry.record, r.ProviderUnavailable)
                if was_away == is_away:
                    yield f"told again: {entry.record}"
            case r.TurnFailed() | r.SessionFailed():
                yield f"{entry.record}"
            case r.DeliverySettled(outcome=outcome) if outcome != "completed":
                yield f"{entry.record}"
    if is_away:
        yield "nobody was told that the provider is back"


def settings_file(ledger: Path) -> Path:
    return ledger.with_name("clerk.json")


async def run_outage(settings: OutageSettings, directory: Path) -> OutageReport:
    """Let an outage happen in a directory that is its own; return what came of it."""
    async with opened(settings.store, directory) as place, WireServer(otherwise=answer) as provider:
        return await OutageRun(settings, directory, place, provider).run()


def agent_of(ledger: Ledger, _: str) -> Agent[Any, Any]:
    known = settings_file(ledger.path).read_bytes()
    return clerk(msgspec.json.decode(known, type=ClerkSettings))


if __name__ == "__main__":
    serve_as_worker(sys.argv[1:], agent_of)
