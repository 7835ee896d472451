"""A loop's process is killed at every change of its directory; the next one goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import pytest_asyncio
from crash_process import Zygote
from loop_scene import effects_of, loop_in

from outlast.milestones import DurableLoop
from outlast.milestones.execution import (
    CompletedExecution,
    Execution,
    ExecutionProgress,
    SavedCheckpoint,
    unpacked,
)
from outlast.planning import Plan

STEPS = ["step 1", "step 2"]
AT_ONCE = 4
KINDS: dict[str, Any] = {
    "request.json": Execution,
    "progress.json": ExecutionProgress,
    "completed": CompletedExecution,
}


class Kill(NamedTuple):
    """The change of the directory at which a process dies: before it, or in the middle of it."""

    at: int
    halfway: bool = False


ALIVE = Kill(0)
EVERY = "OUTLAST_EVERY_KILL" in os.environ
"""Set by `make chaos`; without it some places are tried, others each time the code changes them."""
Check = Callable[[Zygote, Path, Kill], Awaitable[str]]


@pytest_asyncio.fixture
async def loops() -> AsyncIterator[Zygote]:
    zygote = await Zygote.start("crash_loop")
    yield zygote
    await zygote.stop()


async def run(loops: Zygote, job: str, directory: Path, kill: Kill = ALIVE) -> list[str]:
    """What a process says that works on a directory; nothing if it was killed."""
    process = await loops.run(job, directory=str(directory), at=kill.at, halfway=kill.halfway)
    assert await process.until_exit() == (-9 if kill.at else 0), process.said
    return process.said


async def kills_of(loops: Zygote, job: str, directory: Path) -> list[Kill]:
    """Every place at which a process can be killed that works on a directory undisturbed."""
    *_, counted = await run(loops, job, directory)
    changes, *writes = map(int, counted.split()[1:])
    return [*(Kill(at) for at in range(1, changes + 1)), *(Kill(at, halfway=True) for at in writes)]


def chosen(kills: list[Kill]) -> list[Kill]:
    return kills if EVERY else kills[len(kills) % 6 :: 6]


async def complaints(
    loops: Zygote, tmp_path: Path, kills: Sequence[Kill], check: Check
) -> list[str]:
    """What is wrong after each kill, in a directory of its own; several are played at once."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def checked(kill: Kill) -> str:
        async with limit:
            return await check(loops, tmp_path / f"kill-{kill.at}-{kill.halfway}", kill)

    return [wrong for wrong in await asyncio.gather(*map(checked, kills)) if wrong]


def unfinished(directory: Path) -> list[str]:
    """The files that are being written. All others have to be there whole."""
    for path in directory.glob("*"):
        if path.suffix != ".tmp" and path.name != "lock":
            unpacked(path.read_bytes(), KINDS.get(path.name, SavedCheckpoint))
    return [path.name for path in directory.glob("*.tmp")]


def done_of(loop: DurableLoop[Any, Any]) -> list[str]:
    """The steps that the newest checkpoint has as done."""
    checkpoint = loop.load_checkpoint()
    plan = checkpoint.query(Plan).latest() if checkpoint else None
    return [step.title for step in plan.done] if plan else []


async def what_is_wrong_after(loops: Zygote, directory: Path, kill: Kill) -> str:
    """Kill a process, let another one go on, and return what it should not have done."""
    loop = loop_in(directory)
    await run(loops, "execute", directory, kill)
    assert len(unfinished(directory)) < 2
    kept, done = done_of(loop), len(effects_of(loop))
    began = loop.load_request() is not None
    result = await loop.execute(None if began else "go")
    redone = effects_of(loop)[done:]
    is_right = (
        (result.output, loop.is_incomplete) == ("done", False)
        and result.attempts <= 2
        and not set(kept) & set(redone)
        and sorted({*effects_of(loop)}) == STEPS
        and (began or redone == STEPS)
        and not unfinished(directory)
    )
    return "" if is_right else f"{kill}: {result}; {kept} was kept, and {redone} was done then"


async def test_a_kill_at_any_write_loses_no_step_that_a_checkpoint_has(
    loops: Zygote, tmp_path: Path
) -> None:
    kills = await kills_of(loops, "execute", loop_in(tmp_path / "undisturbed").directory)
    assert len(kills) > 50

    assert await complaints(loops, tmp_path, chosen(kills), what_is_wrong_after) == []


async def test_a_kill_while_a_new_execution_takes_the_place_of_another_mixes_nothing(
    loops: Zygote, tmp_path: Path
) -> None:
    completed = loop_in(tmp_path / "completed")
    await completed.execute("before")

    async def what_is_wrong(loops: Zygote, directory: Path, kill: Kill) -> str:
        copytree(completed.directory, directory)
        loop = loop_in(directory)
        await run(loops, "execute", directory, kill)
        began, done = loop.load_request() == "go", effects_of(loop)
        stale = began and done_of(loop)
        result = await loop.execute("go")
        is_right = not stale and result.output == "done" and effects_of(loop) == STEPS
        return "" if is_right else f"{kill}: {began}, {done}, {stale}, {result}"

    kills = [Kill(at) for at in range(1, 18)]
    assert await complaints(loops, tmp_path, kills if EVERY else kills[::2], what_is_wrong) == []


async def what_is_wrong_after_a_clear(loops: Zygote, directory: Path, kill: Kill) -> str:
    """Kill a process that gives up an execution: it is there as before, or it is gone."""
    copytree(directory.with_name("completed"), directory)
    loop = loop_in(directory)
    await run(loops, "clear", directory, kill)
    if loop.is_incomplete:
        return f"{kill}: what was completed is incomplete"
    is_there = loop.load_request() is not None
    await loop.execute("go")
    done = effects_of(loop)
    return "" if done == ([] if is_there else STEPS) else f"{kill}: {is_there}, and {done} was done"


async def test_a_kill_while_an_execution_is_given_up_leaves_it_as_it_was_or_gone(
    loops: Zygote, tmp_path: Path
) -> None:
    completed = loop_in(tmp_path / "completed")
    await completed.execute("go")
    copytree(completed.directory, tmp_path / "undisturbed")
    kills = await kills_of(loops, "clear", tmp_path / "undisturbed")
    assert len(kills) > 5

    assert await complaints(loops, tmp_path, kills, what_is_wrong_after_a_clear) == []


async def test_kills_in_a_row_lose_nothing_that_was_kept(loops: Zygote, tmp_path: Path) -> None:
    loop = loop_in(tmp_path / "often")
    kept: list[str] = []
    kills = 0
    for at in range(7, 100, 6):
        process = await loops.run(
            "execute", directory=str(loop.directory), at=at, halfway=bool(at % 4 == 1)
        )
        kills += await process.until_exit() != 0
        assert len(unfinished(loop.directory)) < 2
        assert set(kept) <= set(done_of(loop))
        kept = done_of(loop)
    result = await loop.execute()
    assert (result.output, sorted({*effects_of(loop)})) == ("done", STEPS)
    assert kills > 4
    assert result.attempts in (kills, kills + 1)  # the first may die before it is counted
