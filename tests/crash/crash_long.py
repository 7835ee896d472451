"""A plan of many steps, whose worker is killed again and again at random instants.

The model decides by what it is told, as a real one does: the plan behind the conversation says
which step is next, and the conversation, as far as it sees it, whether that was worked on. Of work
whose outcome is unknown it finds out first, and a human is asked before that is begun again. The
book says what was really done.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from crash_book import Book
from crash_process import Process, Zygote

from outlast import Agent, Context, Limits, ModelOptions, Outlast, Session, WorkerSettings, tool
from outlast.agents.model.client import FinishedAnswer, ModelRequest
from outlast.core.message import Message, ModelAnswer, ToolCall, ToolOutputs
from outlast.core.policy import Resume
from outlast.core.result import Usage
from outlast.log.verify import verify
from outlast.planning import Planning
from outlast.testing import ScriptedModel, ScriptedReply, call, say

NEXT = re.compile(r"^- (\d+)\. ", re.MULTILINE)
TASK = "Do all of it."
HASTE = WorkerSettings(poll=0.05, watch=0.05, lease=6.0)
LONGEST = 0.08
"""How many seconds a worker has at most, after it has begun to work."""
BYTES_PER_TOKEN = 4
IN_TIME = 240.0


def long_agent(book: Book, steps: int, resume: Resume) -> Agent[Any, Any]:
    @tool
    async def work(ctx: Context[Any], step: int) -> str:
        """Do the work of a step. It must not be done twice."""
        await asyncio.sleep(0.03)  # some kills shall fall between its start and its effect
        book.effect(f"worked {step}")
        return f"the work of step {step} is done"

    @tool(readonly=True)
    async def look(step: int) -> str:
        """Look whether the work of a step was done."""
        is_done = f"worked {step}" in book.effects()
        return f"the work of step {step} is {'done' if is_done else 'not done'}"

    return Agent(
        "long",
        PlanFollower(steps, book),
        tools=[work, look],
        planning=Planning(),
        resume=resume,
        model_options=ModelOptions(stream=False),
        limits=Limits(max_steps=10 * steps, max_crashes=100),
    )


class PlanFollower(ScriptedModel):
    """Goes through a plan step by step; tokens are those that its requests really have."""

    def __init__(self, steps: int, book: Book) -> None:
        self._titles = [f"part {number}" for number in range(1, steps + 1)]
        super().__init__(self._next, on_request=lambda _: book.effect("asked"))

    def _next(self, request: ModelRequest) -> ScriptedReply:
        if "All steps are done." in request.tail:
            return say("All of it is done.")
        if not (found := NEXT.search(request.tail.partition("**Remaining:**")[2])):
            setup = {"objective": TASK, "initial_steps": self._titles}
            return call("planning_setup_plan", **setup)
        step = int(found[1])
        said = what_was_said(request.view.messages, step)
        if said.endswith(f"step {step} is done"):
            return call("planning_update_step", step_id=step, status="done")
        return call("look", step=step) if "unknown" in said else call("work", step=step)

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        await asyncio.sleep(0.05)
        found = await super().request(request)
        size = len(str(request.view.messages)) + len(request.instructions) + len(request.tail)
        usage = Usage(input_tokens=size // BYTES_PER_TOKEN, output_tokens=20)
        return FinishedAnswer(found.parts, usage, found.model, found.finish)


def what_was_said(messages: list[Message], step: int) -> str:
    """Return what the last call of `work` or `look` for a step came to, if it is seen."""
    asked = {
        part.call_id
        for message in messages
        if isinstance(message, ModelAnswer)
        for part in message.parts
        if isinstance(part, ToolCall) and part.tool in ("work", "look")
        if part.args == f'{{"step":{step}}}'
    }
    outputs = (m for m in reversed(messages) if isinstance(m, ToolOutputs))
    results = (result for output in outputs for result in output.results)
    return next((result.text for result in results if result.call_id in asked), "")


async def carry(
    say_: Callable[[str], None], *, url: str, book: str, steps: int, resume: Resume
) -> None:
    """Be a worker, until SIGTERM or a kill."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    async with Outlast([long_agent(Book(book), steps, resume)], store=url, worker=HASTE):
        say_("at work")
        await stop.wait()


JOBS = {"carry": carry}


@dataclass(frozen=True)
class LongRun:
    """What came of a plan. `tokens` are all that its model was sent."""

    resume: Resume
    steps: int
    output: str | None
    kills: int
    worked: Counter[str]
    titles: tuple[str, ...]
    types: Counter[str]
    findings: tuple[str, ...]
    tokens: int
    done_again: tuple[str, ...]

    def complaints(self, planned: int) -> Iterator[str]:
        """Say what must not be."""
        if self.output != "All of it is done.":
            yield f"it ended with {self.output!r}: {dict(self.types)}"
        if self.kills != planned:
            yield f"{self.kills} workers were killed, and {planned} were to be"
        parts = {f"worked {number}" for number in range(1, self.steps + 1)}
        if self.worked.keys() != parts or set(self.worked.values()) != {1}:
            yield f"each part was to be worked on once: {self.worked}"
        if len(self.titles) != self.steps or len(set(self.titles)) != self.steps:
            yield f"each step is one milestone: {self.titles}"
        restarts = self.types["context.restarted"]
        if restarts > self.kills or (self.resume == "transcript" and restarts):
            yield f"the context began anew {restarts} times"
        yield from self.done_again
        yield from self.findings


async def run_long(
    zygote: Zygote, directory: Path, url: str, resume: Resume, steps: int, kills: int, seed: int
) -> LongRun:
    """Have a plan carried out by one worker at a time, so many of which are killed."""
    book = Book(directory / f"book-{resume}-{kills}-{seed}.jsonl")
    app = Outlast([long_agent(book, steps, resume)], store=url, worker=None)
    async with asyncio.timeout(IN_TIME), app, asyncio.TaskGroup() as group:
        session: Session[Any] = await app.start("long", TASK, mode="task")
        human = group.create_task(answer(session, book))
        chance, killed = Random(seed), 0
        order = {"url": url, "book": book.path, "steps": steps, "resume": resume}
        for _ in range(kills):
            worker = await zygote.run("carry", **order)
            if not await is_busy(book, worker, session):
                break
            await asyncio.sleep(chance.uniform(0.0, LONGEST))
            worker.signal(signal.SIGKILL)
            killed += await worker.until_exit() == -signal.SIGKILL
        last = await zygote.run("carry", **order)
        await human
        result = await session.wait()
        await last.stop()
        said = result.output if result.status == "completed" else str(result)
        return await report(app, session, book, said, resume, steps, killed)
    raise AssertionError


async def answer(session: Session[Any], book: Book) -> None:
    """Let work begin again whose outcome is unknown, if it was not done; end with the turn."""
    async for event in session.events():
        if event.type == "request.opened":
            [request] = [
                each
                for each in await session.requests()
                if each.request_id == event.data["request_id"]
            ]
            assert f"worked {request.args['step']}" not in book.effects()
            await session.answer(request.request_id, "approve")
        elif event.type == "turn.failed":
            return


async def is_busy(book: Book, worker: Process, session: Session[Any]) -> bool:
    """Wait until a worker has begun something; return False if there was nothing left to do."""
    before = len(book.effects())
    await worker.until_said("at work")
    while len(book.effects()) == before:
        if worker.exit is not None or (await session.info()).over:
            return False
        await asyncio.sleep(0.02)
    return True


async def report(
    app: Outlast,
    session: Session[Any],
    book: Book,
    output: str | None,
    resume: Resume,
    steps: int,
    killed: int,
) -> LongRun:
    events = [event async for event in session.events(follow=False, internals=True)]
    spent = [event.data for event in events if event.type == "usage.recorded"]
    milestones = await session.milestones()
    return LongRun(
        resume=resume,
        steps=steps,
        output=output,
        kills=killed,
        worked=Counter(each for each in book.effects() if each != "asked"),
        titles=tuple(each.title for each in milestones),
        types=Counter(event.type for event in events),
        findings=tuple(str(each) for each in await verify(app.store, session.id)),
        tokens=sum(data.get("input_tokens", 0) for data in spent),
        done_again=tuple(worked_after_done(events)),
    )


def worked_after_done(events: list[Any]) -> Iterator[str]:
    """Say which work began for a step that was marked done before."""
    done: set[int] = set()
    asked: dict[str, tuple[str, dict[str, Any]]] = {}
    for event in events:
        match event.type:
            case "tool.requested":
                asked[event.call_id] = event.data["tool"], event.data["args"]
            case "milestone.reached":
                done.add(asked[event.call_id][1]["step_id"])
            case "tool.started" if asked[event.call_id][0] == "work":
                if (step := asked[event.call_id][1]["step"]) in done:
                    yield f"{event.call_id} works on step {step}, which is done"
