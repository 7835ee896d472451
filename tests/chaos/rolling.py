"""A rolling deploy under streaming chats: a turn ends on the code that it began on.

A provider on loopback is told which code asks it, by the instructions, and names it in all that it
says. One old worker is drained and one is killed while chats stream, the last one leaves when
nothing is left on its deployment. Every turn has to be of one version from its first word to its
last, and every reader has to have each answer whole, once.

`python -m chaos.rolling URL LEDGER LEASE VERSION` is one of its workers.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any, cast

from msgspec import Struct

from chaos.fleet import Fleet, Member
from chaos.ledger import Ledger
from chaos.place import Place, opened
from chaos.worker import serve_deployment
from outlast import Agent, Context, Event, ModelOptions, Outlast, Session, tool
from outlast.core.view import GO_ON
from outlast.log.verify import verify
from outlast.testing import ScriptedModel
from outlast.testing.provider_server import (
    ErrorStatus,
    ReceivedCall,
    WireReply,
    WireServer,
    call,
    openai_model,
    reply,
    words,
)

NAME = "guide"
OLD, NEW = "old", "new"
CHUNKS = 8
LOOKS_EVERY = 0.05


class RollingSettings(Struct, frozen=True, kw_only=True):
    """How a run goes. Durations are seconds; `hold` is the longest that a stream stands still."""

    store: str
    chats: int = 100
    seed: int = 0
    hold: float = 0.6
    timeout: float = 120.0


class RollingReport(Struct, kw_only=True):
    """What came of a run: how many turns were of each version."""

    store: str
    chats: int = 0
    turns: dict[str, int] = {}
    cut: int = 0
    wrong: list[str] = []

    def __str__(self) -> str:
        turns = ", ".join(f"{count} {version}" for version, count in sorted(self.turns.items()))
        return (
            f"{self.store}: a rolling deploy under {self.chats} streaming chats: {turns} turns,"
            f" {self.cut} cut off by a kill: {len(self.wrong) or 'nothing'} found wrong"
        )


# The agent, and the provider's side of it


def guide(version: str, ledger: Ledger) -> list[Agent[Any, Any]]:
    @tool(idempotent=True)
    async def look(ctx: Context[Any], item: str) -> str:
        """Look something up."""
        return f"found by {version}"

    url = url_file(ledger.path).read_text()
    options = ModelOptions(max_attempts=4)
    return [
        Agent(NAME, openai_model(url), instructions=version, tools=[look], model_options=options)
    ]


def url_file(ledger: Path) -> Path:
    return ledger.with_name("provider")


class Asked(Struct, frozen=True):
    """A request as the provider understands it: whose code asks, and how far the answer is."""

    version: str
    text: str
    said: str
    has_result: bool


def asked_in(received: ReceivedCall) -> Asked:
    messages = received.body["messages"]
    [version] = {m["content"] for m in messages if m["role"] in ("system", "developer")}
    people = [n for n, m in enumerate(messages) if m["role"] == "user" and m["content"] != GO_ON]
    after = messages[people[-1] + 1 :]
    results = [n for n, m in enumerate(after) if m["role"] == "tool"]
    latest = after[results[-1] + 1 :] if results else after
    said = "".join(m["content"] or "" for m in latest if m["role"] == "assistant")
    return Asked(version, messages[people[-1]]["content"], said, bool(results))


def texts_of(version: str, text: str) -> list[str]:
    """Return what the model says in each step of a turn."""
    return [
        f"The {version} code looks for {text}: " + "one by one, " * 12 + "so. ",
        f"The {version} code has found {text}: " + "and so on, " * 12 + f"that was {text}.",
    ]


class Answers:
    """Answers whole, each standing still somewhere in its middle."""

    def __init__(self, settings: RollingSettings) -> None:
        self._chance = Random(settings.seed)
        self._hold = settings.hold

    def __call__(self, received: ReceivedCall) -> WireReply | ErrorStatus:
        asked = asked_in(received)
        whole = texts_of(asked.version, asked.text)[asked.has_result]
        if not whole.startswith(asked.said):
            return ErrorStatus(400, f"no {asked.version} code has said {asked.said!r}")
        rest = whole.removeprefix(asked.said)
        size = max(1, len(rest) // CHUNKS)
        pieces = [words(*(rest[at : at + size] for at in range(0, len(rest), size)))]
        if not asked.has_result:
            pieces.append(call("look", f'{{"item": "{asked.text}"}}'))
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(self._chance.uniform(0, self._hold), gate.set)
        return reply(*pieces, hold=self._chance.randint(2, CHUNKS), gate=gate)


# The run


class Chat(Struct, kw_only=True):
    """A session with somebody who writes in it, and what a reader of it was given."""

    name: str
    session: Session[Any]
    sent: dict[str, str] = {}
    """The turn of each text."""
    read: list[Event] = []


class RollingRun:
    """The director: people chat, the new code comes, the old one leaves."""

    def __init__(
        self, settings: RollingSettings, directory: Path, place: Place, provider: WireServer
    ) -> None:
        self._settings = settings
        self._place = place
        self._provider = provider
        self._ledger = Ledger(directory / "ledger.jsonl")
        url_file(self._ledger.path).write_text(provider.url)
        self._chance = Random(settings.seed)
        self._chats: list[Chat] = []
        self._is_over = asyncio.Event()
        self._report = RollingReport(store=settings.store, chats=settings.chats, turns={}, wrong=[])

    async def run(self) -> RollingReport:
        writer: Agent[Any, Any] = Agent(NAME, ScriptedModel([]))  # this process asks no model
        fleet = Fleet(self._place, self._ledger.path, program="chaos.rolling")
        async with Outlast([writer], store=self._place.url, worker=None) as app, fleet:
            old = await asyncio.gather(*(fleet.start(OLD) for _ in range(3)))
            chatting = [
                asyncio.create_task(self._chat(app, f"c{number}"))
                for number in range(self._settings.chats)
            ]
            async with asyncio.timeout(self._settings.timeout):
                await self._roll(app, fleet, old)
                self._is_over.set()
                await asyncio.gather(*chatting)
            await self._look(app)
            await fleet.dismiss()
            self._report.wrong += fleet.trouble
        return self._report

    async def _roll(self, app: Outlast, fleet: Fleet, old: Sequence[Member]) -> None:
        """Bring the new code, and let the old one go: drained, killed, and when it is done."""
        await self._until_streams(self._settings.chats)
        await asyncio.gather(fleet.start(NEW), fleet.start(NEW))
        held = {each.pid: each.held for each in await app.workers.list()}
        last, drained, killed = sorted(old, key=lambda member: held[member.pid])
        await asyncio.gather(fleet.kill(killed), fleet.send_home(drained))
        while not await self._can_be_retired(app):  # noqa: ASYNC110 - it is asked, as people do
            await asyncio.sleep(LOOKS_EVERY)
        await fleet.send_home(last)
        await self._until_streams(len(self._provider.requests) + self._settings.chats)

    async def _until_streams(self, requests: int) -> None:
        """Wait until the provider was asked so often."""
        while len(self._provider.requests) < requests:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(LOOKS_EVERY)

    async def _can_be_retired(self, app: Outlast) -> bool:
        known = {each.name: each for each in await app.deployments.list()}
        return known[OLD].can_be_retired

    async def _chat(self, app: Outlast, name: str) -> None:
        """Write until the deploy is over, and once more; have a reader read it all."""
        await asyncio.sleep(self._chance.uniform(0, self._settings.hold))
        first = f"{name} 0"
        session = await app.start(NAME, first)
        chat = Chat(name=name, session=session, sent={}, read=[])
        self._chats.append(chat)
        reading = asyncio.create_task(self._read(chat))
        assert session.receipt is not None
        await self._take(chat, first, await session.receipt.result())
        is_last = False
        while not is_last:
            is_last = self._is_over.is_set()
            text = f"{name} {len(chat.sent)}"
            await self._take(chat, text, await (await session.send(text)).result())
        await session.end("it was only a test")
        await reading

    async def _take(self, chat: Chat, text: str, result: Any) -> None:
        chat.sent[text] = result.turn
        if result.status != "completed":
            self._report.wrong.append(f"{text!r} came to {result}")

    async def _read(self, chat: Chat) -> None:
        """Read to the end, leaving and coming back at the cursor."""
        while not any(event.type == "session.ended" for event in chat.read):
            most = self._chance.randint(5, 60)
            cursor = chat.read[-1].cursor if chat.read else 0
            async with aclosing(cast(Any, chat.session.events(cursor))) as events:
                async for event in events:
                    chat.read.append(event)
                    most -= 1
                    if most == 0:
                        break

    # What is left

    async def _look(self, app: Outlast) -> None:
        asked: dict[str, set[str]] = defaultdict(set)
        known: set[tuple[str, bool]] = set()
        for received in self._provider.requests:
            each = asked_in(received)
            asked[each.text].add(each.version)
            self._report.cut += (each.text, each.has_result) in known
            known.add((each.text, each.has_result))
        for chat in self._chats:
            for finding in await verify(app.store, chat.session.id):
                self._report.wrong.append(str(finding))
            for wrong in self._wrong_in(chat, asked):
                self._report.wrong.append(f"{chat.name}: {wrong}")

    def _wrong_in(self, chat: Chat, asked: dict[str, set[str]]) -> Iterator[str]:
        began = {e.turn: e.data["deployment"] for e in chat.read if e.type == "turn.started"}
        offsets = [event.offset for event in chat.read]
        if offsets != sorted(set(offsets)):
            yield f"its reader got events twice or in another order: {offsets}"
        for text, turn in chat.sent.items():
            version = began[turn]
            self._report.turns[version] = self._report.turns.get(version, 0) + 1
            if asked[text] != {version}:
                yield f"{turn} began on {version}, and the code that asked is {asked[text]}"
            if (read := read_of(chat.read, turn)) != texts_of(version, text):
                yield f"the reader of {turn} on {version} has {read}"


def read_of(events: Sequence[Event], turn: str) -> list[str]:
    """Return the text of each step of a turn, as a reader puts it together from the pieces."""
    steps: dict[int, str] = {}
    for event in events:
        if event.turn != turn:
            continue
        if event.type == "message.delta" and not event.data.get("tool"):
            steps[event.step] = steps.get(event.step, "") + event.data["text"]
        elif event.type == "message.aborted" and not event.data.get("kept"):
            steps.pop(event.step, None)
    return [steps[step] for step in sorted(steps)]


async def run_rolling(settings: RollingSettings, directory: Path) -> RollingReport:
    """Deploy in a directory that is its own; return what came of it."""
    provider = WireServer(otherwise=Answers(settings))
    async with opened(settings.store, directory) as place, provider:
        return await RollingRun(settings, directory, place, provider).run()


if __name__ == "__main__":
    serve_deployment(sys.argv[1:], guide)
