"""A deploy, a rollback and a mended deploy under live sessions, with workers killed meanwhile.

Sessions are parked on approvals, questions and children when the second version of the shop comes
(`release.py`). A third of the people answer while it starts, a third when only it is there, the
others after the rollback; what is left then ends with the mended version.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from chaos import SEARCH_PATH
from chaos.fleet import Fleet, Member
from chaos.ledger import Ledger
from chaos.place import Place, opened
from chaos.release import CASES, Version, agents_of
from chaos.run import read_log
from outlast import Outlast, Request, Session
from outlast.core import record as r
from outlast.core.record import Entry
from outlast.errors import InvalidAnswer, RequestClosed
from outlast.log.verify import verify

APPROVED = ("refund", "pay", "charge", "stamp")
FORETOLD = {"pay": "tool", "charge": "arguments", "survey": "wait", "delegate": "agent"}
"""What `outlast check` has to say of the sessions that called these tools; of others nothing."""
NAMED = {"delegate": "helper"}
DENIED = 5
"""Every so many approvals are refused."""
CODE = """
from pathlib import Path
from chaos.ledger import Ledger
from chaos.release import agents_of
from outlast import Outlast
app = Outlast(agents_of("{version}", Ledger(Path("{ledger}"))), worker=None)
"""


class DeploySettings(Struct, frozen=True, kw_only=True):
    """How a run goes. Durations are seconds."""

    store: str
    sessions: int = 200
    seed: int = 0
    workers: int = 2
    kills: int = 2
    timeout: float = 120.0


class DeployReport(Struct, kw_only=True):
    """What came of a run: how many sessions met what `outlast check` had foretold, and how."""

    store: str
    sessions: int
    kills: int = 0
    met: Counter[str] = Counter()
    wrong: list[str] = []

    def __str__(self) -> str:
        met = ", ".join(f"{kind} {count}" for kind, count in sorted(self.met.items()))
        return (
            f"{self.store}: {self.sessions} parked sessions through a deploy, a rollback and a"
            f" mended deploy, {self.kills} kills; foretold and met: {met}:"
            f" {len(self.wrong) or 'nothing'} found wrong"
        )


class Parked(Struct, kw_only=True):
    """A session, the tool that it is parked in, and what its user does about it."""

    case: str
    item: str
    group: int
    denies: bool
    session: Session[Any]
    approved: int = 0


class DeployRun:
    """The director: owns the fleet, the people and what they find wrong."""

    def __init__(self, settings: DeploySettings, directory: Path, place: Place) -> None:
        self._settings = settings
        self._directory = directory
        self._place = place
        self._ledger = Ledger(directory / "ledger.jsonl")
        self._fleet = Fleet(place, self._ledger.path, program="chaos.release")
        self._serving: dict[Version, list[Member]] = {}
        self._chance = Random(settings.seed)
        self._parked: list[Parked] = []
        self._report = DeployReport(
            store=settings.store, sessions=settings.sessions, met=Counter(), wrong=[]
        )

    async def run(self) -> DeployReport:
        async with AsyncExitStack() as stack:
            first, second, mended = [
                await stack.enter_async_context(self._app(version))
                for version in ("first", "second", "mended")
            ]
            await stack.enter_async_context(self._fleet)
            await self._deploy("first")
            await self._park_all(first)
            await self._check("second", FORETOLD)
            await self._check("mended", {})

            await asyncio.gather(self._answer(first, 0), self._deploy("second"), self._kill_one())
            await self._leave("first")
            await asyncio.gather(
                self._answer(self._chance.choice([first, second]), 1), self._kill_one()
            )
            await self._until_met()

            await self._command("deployments", "promote", "first", "--store", self._place.url)
            await self._deploy("first")
            await asyncio.gather(self._leave("second"), self._answer(first, 2), self._kill_one())

            await self._deploy("mended")
            await asyncio.gather(self._leave("first"), self._kill_one())
            await self._finish(mended)
            await self._look(mended)
            await self._fleet.dismiss()
            self._report.wrong += self._fleet.trouble
        return self._report

    def _app(self, version: Version) -> Outlast:
        return Outlast(agents_of(version, self._ledger), store=self._place.url, worker=None)

    # The fleet

    async def _deploy(self, version: Version) -> None:
        started = [self._fleet.start(version) for _ in range(self._settings.workers)]
        self._serving[version] = list(await asyncio.gather(*started))

    async def _leave(self, version: Version) -> None:
        """Have the workers of a version go home, as they do when they are drained."""
        leaving = [m for m in self._serving.pop(version) if not m.is_gone]
        await asyncio.gather(*(self._fleet.send_home(member) for member in leaving))

    async def _kill_one(self) -> None:
        """Kill a worker in the middle of what is done, and start another of its version."""
        for _ in range(self._settings.kills):
            await asyncio.sleep(self._chance.uniform(0.05, 0.4))
            version = self._chance.choice(sorted(self._serving))
            serving = self._serving[version]
            await self._fleet.kill(serving.pop(self._chance.randrange(len(serving))))
            self._report.kills += 1
            member = await self._fleet.start(version)
            if self._serving.get(version) is serving:
                serving.append(member)
            else:  # its version has left meanwhile
                await self._fleet.send_home(member)

    async def _command(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outlast.cli", *arguments),
            cwd=self._directory,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        )
        told, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, told.decode()

    async def _check(self, version: Version, foretold: dict[str, str]) -> None:
        """Hold what `outlast check` says of new code against the sessions that are parked."""
        (self._directory / f"code_{version}.py").write_text(
            CODE.format(version=version, ledger=self._ledger.path)
        )
        code, told = await self._command(
            *("check", f"code_{version}:app", "--store", self._place.url, "--json")
        )
        cases = Counter(parked.case for parked in self._parked)
        expected = {(foretold[c], NAMED.get(c, c), n) for c, n in cases.items() if c in foretold}
        expected.add(("output", "output_type", cases["stamp"]))
        findings = msgspec.json.decode(told)["findings"]
        found = {(each["kind"], each["name"], each["count"]) for each in findings}
        if (code, found) != (1, expected):
            self._wrong(f"check of {version} exits with {code} and says {found}, not {expected}")

    # The people

    async def _park_all(self, app: Outlast) -> None:
        async def start(number: int) -> Parked:
            case, item = CASES[number % len(CASES)], f"i{number}"
            session = await app.start(
                "clerk" if case == "stamp" else "shop",
                msgspec.json.encode({"tool": case, "item": item}).decode(),
                mode="task",
                dispatch_id=item,
            )
            result = await session.wait(timeout=self._settings.timeout)
            if len(result.requests) != 1:
                self._wrong(f"{case} of {session.id} is not parked: {result}")
            group, denies = number // len(CASES) % 3, number % DENIED == 0
            return Parked(case=case, item=item, group=group, denies=denies, session=session)

        numbers = range(self._settings.sessions)
        self._parked = list(await asyncio.gather(*(start(number) for number in numbers)))

    async def _answer(self, app: Outlast, group: int) -> None:
        """Have a third of the people answer what they are asked."""
        mine = [parked for parked in self._parked if parked.group == group]
        await asyncio.gather(*(self._answer_all(app, parked) for parked in mine))

    async def _answer_all(self, app: Outlast, parked: Parked) -> None:
        session = await app.session(parked.session.id)
        for request in (await session.wait(timeout=0)).requests:
            await self._answer_one(session, parked, request)

    async def _answer_one(self, session: Session[Any], parked: Parked, request: Request) -> None:
        option: str | None = "deny" if parked.denies else "approve"
        text: str | None = None
        if request.kind == "question":
            option, text = None, f"re: {request.prompt}"
        elif request.kind == "interrupted":  # a call was cut off with its worker
            option = "give_up"
        try:
            await session.answer(request.request_id, option, text=text)
        except RequestClosed:
            return
        except InvalidAnswer:  # its arguments do not fit what this version calls by that name
            args = {"item": parked.item, "to": "ada"}
            await session.answer(request.request_id, option, args=args)
        parked.approved += option == "approve"

    async def _until_met(self) -> None:
        """Wait until those who answered have met what the second version lacks."""
        waiting = [p for p in self._parked if p.group == 1 and p.case in FORETOLD and not p.denies]
        async with asyncio.timeout(self._settings.timeout):
            for parked in waiting:
                while parked.case != "delegate":  # whose child waits in silence
                    info = await parked.session.info()
                    if info.over or met_by(await self._log_of(parked)):
                        break
                    await asyncio.sleep(0.02)

    async def _finish(self, app: Outlast) -> None:
        """Answer all that is asked until every session has ended."""

        async def finish(parked: Parked) -> None:
            session = await app.session(parked.session.id)
            while not (await session.info()).over:
                result = await session.wait(timeout=1)
                for request in result.requests:
                    await self._answer_one(session, parked, request)

        finishing = [asyncio.create_task(finish(parked)) for parked in self._parked]
        _, late = await asyncio.wait(finishing, timeout=self._settings.timeout)
        for task in late:
            task.cancel()
        for ended in await asyncio.gather(*finishing, return_exceptions=True):
            if isinstance(ended, Exception):
                self._wrong(f"a user met {ended!r}")
        for parked, task in zip(self._parked, finishing, strict=True):
            if task in late:
                text = str(await parked.session.explain())
                self._wrong(f"{parked.case} of {parked.session.id} has not ended: {text}")

    # What is left

    async def _log_of(self, parked: Parked) -> tuple[Entry, ...]:
        return await read_log(self._app_store, parked.session.id)

    @property
    def _app_store(self) -> Any:
        return self._parked[0].session._store

    async def _look(self, app: Outlast) -> None:
        done = Counter(mark.key for mark in self._ledger.read() if mark.what == "did")
        for parked in self._parked:
            session = await app.session(parked.session.id)
            log = await read_log(app.store, session.id)
            for finding in await verify(app.store, session.id):
                self._wrong(str(finding))
            result = await session.wait(timeout=0)
            if result.status != "completed":
                self._wrong(f"{parked.case} of {session.id} ended as {result}")
            for wrong in wrong_in(parked, log, str(result.output), done[parked.item]):
                self._wrong(f"{parked.case} of {session.id}: {wrong}")
            met = met_by(log)
            self._report.met.update(met)
            if surprises := met - {FORETOLD.get(parked.case, "")}:
                self._wrong(f"nobody foretold what {parked.case} of {session.id} met: {surprises}")
        for mark in self._ledger.read():
            if mark.what == "heard":
                asked, prompt, text = msgspec.json.decode(mark.key)
                if not (asked == prompt and text == f"re: {asked}"):
                    self._wrong(f"an answer reached another question: {mark}")
            elif mark.what == "lost":
                self._wrong(str(mark))

    def _wrong(self, what: str) -> None:
        self._report.wrong.append(what)


def wrong_in(parked: Parked, log: Sequence[Entry], output: str, done: int) -> Iterator[str]:
    """Tell what became of a session that should not have."""
    is_cut = any(isinstance(entry.record, r.ToolInterrupted) for entry in log)
    if parked.case not in APPROVED:
        if "re: " not in output:
            yield f"no answer was used: {output}"
    elif done > 1:
        yield f"it was done {done} times"
    elif parked.denies:
        if done:
            yield "it was done though a human said no"
    elif not done and not is_cut:
        yield f"its approval was lost: {output}"


def met_by(log: Sequence[Entry]) -> set[str]:
    """Return in which of the ways that `outlast check` names a session met other code."""
    met: set[str] = set()
    asked: Counter[tuple[str, str]] = Counter()
    for entry in log:
        match entry.record:
            case r.ToolVanished():
                met.add("tool")
            case r.RequestOpened(kind="approval", call_id=call_id):
                asked["arguments", call_id] += 1
            case r.RequestOpened(kind="question", call_id=call_id, tool="survey"):
                asked["wait", call_id] += 1
            case r.SubagentCalled(call_id=call_id):
                asked["agent", call_id] += 1
    return met | {kind for (kind, _), count in asked.items() if count > 1}


async def run_deploys(settings: DeploySettings, directory: Path) -> DeployReport:
    """Deploy, roll back and mend in a directory that is its own; return what came of it."""
    async with opened(settings.store, directory) as place:
        return await DeployRun(settings, directory, place).run()
