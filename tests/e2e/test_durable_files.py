"""The files of a loop: damaged at every length, on a disk that takes nothing, by other code."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from loop_scene import effects_of, has_done, has_worked_on, loop_in

from outlast import Agent, Context, tool
from outlast.agents.model.client import ModelRequest
from outlast.errors import SessionError, SliceChanged, StoreCorrupt, StoreFromTheFuture
from outlast.milestones import CheckpointTrigger, DurableLoop
from outlast.planning import Plan
from outlast.state import slice_type
from outlast.testing import ScriptedModel, call, say
from outlast.testing.scripted import ScriptedError, ScriptedReply

TIMEOUT = 60


@pytest.fixture(autouse=True)
def loud(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING, "outlast")
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "worker-001"


async def interrupted(loop: DurableLoop[Any, Any], request: Any = "go") -> None:
    with pytest.raises(SessionError, match="the model is broken"):
        await loop.execute(request)


@pytest.fixture
async def halfway(directory: Path) -> Path:
    """A directory whose execution has done steps 1 and 2 of 3, a checkpoint each."""
    await interrupted(loop_in(directory, 3, has_done(2)))
    return directory


def steps_done(loop: DurableLoop[Any, Any]) -> int:
    checkpoint = loop.load_checkpoint()
    plan = checkpoint.query(Plan).latest() if checkpoint else None
    return len(plan.done) if plan else 0


def truncations(path: Path) -> Iterator[int]:
    """Cut a file off at every length, one after the other; it is whole again at the end."""
    whole = path.read_bytes()
    logging.disable(logging.WARNING)  # a line for each is slow
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        yield length
    path.write_bytes(whole)


def with_wrong_bits(path: Path) -> Iterator[bytes]:
    """Change a bit of each byte of a file, one after the other, and yield that byte."""
    whole = path.read_bytes()
    logging.disable(logging.WARNING)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        yield whole[place : place + 1]
    path.write_bytes(whole)


def cut(path: Path, part: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.name == "outlast.milestones"]


DAMAGED = "a file of an execution is damaged, and passed over"
NOT_WRITTEN = "an execution cannot be written down; the work goes on"


# Damage


async def test_at_whatever_length_a_checkpoint_ends_the_one_before_is_used(halfway: Path) -> None:
    loop = loop_in(halfway, 3)
    assert steps_done(loop) == 2
    for length in truncations(halfway / "checkpoint.json"):
        assert steps_done(loop) == 1, length
        assert loop.is_incomplete


async def test_at_whatever_length_all_checkpoints_end_the_saved_request_is_used(
    halfway: Path,
) -> None:
    loop = loop_in(halfway, 3)
    (halfway / "checkpoint.1.json").write_bytes(b"")
    for length in truncations(halfway / "checkpoint.json"):
        assert loop.load_checkpoint() is None, length
        assert loop.load_request() == "go"


async def test_at_whatever_length_the_request_ends_another_file_says_what_it_was(
    halfway: Path,
) -> None:
    loop = loop_in(halfway, 3)
    for length in truncations(halfway / "request.json"):
        assert (loop.load_request(), steps_done(loop)) == ("go", 2), length
        assert loop.is_incomplete


async def test_at_whatever_length_a_result_ends_the_execution_counts_as_incomplete(
    halfway: Path,
) -> None:
    loop = loop_in(halfway, 3)
    await loop.execute()
    for length in truncations(halfway / "completed"):
        assert loop.is_incomplete, length
    assert not loop.is_incomplete


async def test_whatever_bit_of_a_checkpoint_is_wrong_it_is_not_used(halfway: Path) -> None:
    loop = loop_in(halfway, 3)
    for byte in with_wrong_bits(halfway / "checkpoint.json"):
        try:
            assert steps_done(loop) == 1, byte
        except StoreFromTheFuture:
            assert byte == b"1"  # the format
    assert steps_done(loop) == 2


@pytest.mark.parametrize("part", [0, 0.5, 0.99])
@pytest.mark.parametrize(
    ("damaged", "redone"),
    [
        (["checkpoint.json"], ["step 2", "step 3"]),
        (["checkpoint.json", "checkpoint.1.json"], ["step 1", "step 2", "step 3"]),
        (["request.json"], ["step 3"]),
        (["progress.json"], ["step 3"]),
        (["request.json", "progress.json", "checkpoint.json"], ["step 2", "step 3"]),
    ],
)
async def test_damaged_files_are_told_and_the_work_goes_on_with_what_is_left(
    halfway: Path,
    damaged: list[str],
    redone: list[str],
    part: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session_id = json.loads((halfway / "request.json").read_text())["body"]["session_id"]
    for name in damaged:
        cut(halfway / name, part)
    result = await loop_in(halfway, 3).execute()
    assert (result.output, result.session_id) == ("done", session_id)
    assert result.attempts == 2
    assert effects_of(loop_in(halfway))[2:] == redone
    assert DAMAGED in warnings(caplog)


async def test_a_damaged_result_is_found_again_from_the_last_checkpoint(directory: Path) -> None:
    await loop_in(directory).execute("go")
    cut(directory / "completed", 0.5)
    result = await loop_in(directory).execute()
    assert (result.output, result.attempts) == ("done", 2)
    assert effects_of(loop_in(directory)) == ["step 1", "step 2"]


async def test_where_nothing_can_be_read_the_request_has_to_be_given_again(halfway: Path) -> None:
    for name in ("request.json", "progress.json", "checkpoint.json", "checkpoint.1.json"):
        cut(halfway / name, 0.5)
    loop = loop_in(halfway, 3)
    assert loop.is_incomplete
    with pytest.raises(StoreCorrupt, match="call execute"):
        await loop.execute()
    assert (await loop.execute("go")).attempts == 1


async def test_what_a_newer_version_has_written_is_left_alone(halfway: Path) -> None:
    body = b'{"entirely":"different"}'
    newer = b'{"format":2,"sha256":"%s","body":%s}' % (sha256(body).hexdigest().encode(), body)
    (halfway / "checkpoint.json").write_bytes(newer)
    with pytest.raises(StoreFromTheFuture, match="go on with the version of Outlast"):
        await loop_in(halfway, 3).execute()
    assert (halfway / "checkpoint.json").read_bytes() == newer
    assert effects_of(loop_in(halfway)) == ["step 1", "step 2"]


async def test_what_is_left_of_another_execution_is_not_used(tmp_path: Path) -> None:
    other = tmp_path / "other"
    await loop_in(other).execute("other")
    await interrupted(loop_in(tmp_path / "own", 2, lambda _: True))
    for name in ("checkpoint.json", "progress.json", "completed"):
        (tmp_path / "own" / name).write_bytes((other / name).read_bytes())
    own = loop_in(tmp_path / "own")
    assert own.is_incomplete
    assert own.load_checkpoint() is None
    assert (await own.execute()).attempts == 1


# What cannot be written


async def test_a_directory_that_vanishes_takes_nothing_and_the_work_goes_on(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def vanish(request: ModelRequest) -> bool:
        rmtree(directory, ignore_errors=True)
        return False

    result = await loop_in(directory, 2, vanish).execute("go")
    assert (result.output, result.is_kept) == ("done", False)
    assert set(warnings(caplog)) == {NOT_WRITTEN}


NO_ROOM = """
import asyncio, os, resource, sys
from dataclasses import dataclass
from outlast import Agent, ToolResult, tool
from outlast.errors import StoreFull
from outlast.milestones import CheckpointTrigger, DurableLoop
from outlast.state import slice_type
from outlast.testing import ScriptedModel, call, say

@slice_type("noise")
@dataclass(frozen=True)
class Noise:
    text: str

_, most = resource.getrlimit(resource.RLIMIT_FSIZE)

def leave_room_for(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))

@tool
async def collect(room: int) -> ToolResult[Noise]:
    leave_room_for(room)
    return ToolResult("collected", Noise(os.urandom(50_000).hex()))

def loop_of(*script):
    agent = Agent("a", ScriptedModel(script), tools=[collect])
    return DurableLoop(agent, sys.argv[1], str, CheckpointTrigger(event_types={Noise}))

def kept(loop):
    found = loop.load_checkpoint()
    return len(found.query(Noise).all()) if found else 0

async def main():
    leave_room_for(0)
    try:
        await loop_of().execute("go")
    except StoreFull as error:
        assert "cannot be written" in error.message
    else:
        raise AssertionError
    leave_room_for(most)
    assert not loop_of().is_incomplete

    counts = []
    def then(reply):
        def look(request):
            counts.append(kept(loop))
            return reply
        return look
    script = [call("collect", room=most), call("collect", room=20_000), call("collect", room=most)]
    loop = DurableLoop(
        Agent("a", ScriptedModel(lambda request: next(steps)), tools=[collect]),
        sys.argv[1], str, CheckpointTrigger(event_types={Noise}),
    )
    def replies():
        for each in [*script, call("collect", room=0), say("done")]:
            counts.append(kept(loop))
            yield each
    steps = replies()
    result = await loop.execute("go")
    leave_room_for(most)
    assert (result.output, result.is_kept) == ("done", False), result
    assert counts == [0, 1, 1, 3, 3], counts  # the second and the fourth had no room
    assert not [name for name in os.listdir(sys.argv[1]) if name.endswith(".tmp")]
    assert loop.is_incomplete and kept(loop) == 3

asyncio.run(main())
"""


def test_a_full_disk_begins_nothing_and_ends_nothing_and_the_next_checkpoint_may_succeed(
    directory: Path,
) -> None:
    run = [sys.executable, "-c", NO_ROOM, str(directory)]
    done = subprocess.run(run, timeout=TIMEOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(NOT_WRITTEN) >= 3


READ_ONLY = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from loop_scene import has_done, loop_in, never, worker, EffectFile
from outlast.errors import SessionError, StoreUnavailable
from outlast.milestones import DurableLoop

directory, effects = Path(sys.argv[1]), EffectFile(Path(sys.argv[3]))

def loop_of(place, fails):
    return DurableLoop(worker(effects, 2, fails), place, str)

async def main():
    try:
        await loop_of(directory, has_done(1)).execute("go")
    except SessionError:
        pass
    os.chmod(directory, 0o555)
    before = sorted((path.name, path.read_bytes()) for path in directory.iterdir())
    result = await loop_of(directory, never).execute()
    assert (result.output, result.is_kept) == ("done", False), result
    assert sorted((path.name, path.read_bytes()) for path in directory.iterdir()) == before
    for refused in (lambda: loop_of(directory, never).clear(),
                    lambda: loop_of(directory / "below", never).clear()):
        try:
            refused()
        except StoreUnavailable as error:
            assert str(directory) in error.message
        else:
            raise AssertionError

asyncio.run(main())
"""


PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def obey_modes() -> None:
    """Have the program that is started next obey the modes of its own files, as root, too."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0


def test_a_directory_that_became_read_only_is_gone_on_with_and_a_new_one_is_refused() -> None:
    with TemporaryDirectory() as name:  # within reach of everybody, as the tests' own is not
        place = Path(name)
        place.chmod(0o755)
        (place / "effects").touch()
        (place / "worker").mkdir()
        support = str(Path(__file__).parents[1] / "support")
        run = [sys.executable, "-c", READ_ONLY, str(place / "worker"), support]
        done = subprocess.run(
            [*run, str(place / "effects")],
            timeout=TIMEOUT,
            capture_output=True,
            text=True,
            preexec_fn=obey_modes,
        )
        (place / "worker").chmod(0o755)
        assert done.returncode == 0, done.stderr
        assert NOT_WRITTEN in done.stderr
        assert (place / "effects").read_text().split().count("1") == 1  # step 1 was done once


FORKS = """
import asyncio, os, sys, time
from outlast import Agent, tool
from outlast.milestones import DurableLoop
from outlast.testing import ScriptedModel, call

@tool
def fork() -> str:
    child = os.fork()
    if not child:
        print(os.getpid(), flush=True)
        time.sleep(600)
    time.sleep(600)
    return ""

agent = Agent("forker", ScriptedModel([call("fork")]), tools=[fork])
asyncio.run(DurableLoop(agent, sys.argv[1], str).execute("go"))
"""


async def test_a_child_that_outlives_its_worker_does_not_keep_the_directory(
    directory: Path,
) -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKS, str(directory), stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    child = int(await worker.stdout.readline())
    try:
        worker.kill()
        worker._transport.close()  # type: ignore[attr-defined]  # the child holds its output
        assert (await loop_in(directory).execute("go")).output == "done"
        os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)


# The order of changes


async def test_each_file_is_synced_before_its_rename_and_its_name_before_anything_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power failure leaves is what was synced: a kill cannot show that."""
    changes: list[str] = []
    names: dict[int, str] = {}
    really_open = os.open

    def opening(path: Any, flags: int, *args: Any, **options: Any) -> int:
        descriptor = really_open(path, flags, *args, **options)
        names[descriptor] = Path(os.fsdecode(path)).name
        return descriptor

    def syncing(descriptor: int) -> None:
        changes.append(f"sync {names[descriptor]}")

    def renaming(old: Path, new: Path) -> None:
        old.rename(new)
        changes.append(f"rename {old.name} {new.name}")

    loop = loop_in(directory)
    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", renaming)
    await loop.execute("go")

    def written(name: str, *before: str) -> list[str]:
        return [f"sync {name}.tmp", *before, f"rename {name}.tmp {name}", "sync worker-001"]

    older = "rename checkpoint.json checkpoint.1.json"
    text = "\n".join(changes)
    assert changes[:3] == written("request.json")
    assert text.count("\n".join(written("progress.json"))) == text.count("rename progress.json.tmp")
    assert "\n".join(written("checkpoint.json")) in text
    assert "\n".join(written("checkpoint.json", older)) in text
    assert changes[-3:] == written("completed")


# Changed code


def reading(directory: Path, *script: ScriptedReply, **options: Any) -> DurableLoop[str, str]:
    """A loop whose agent reads what it keeps of the slice `page`, as its class is then."""
    return DurableLoop(
        Agent("reader", ScriptedModel([*script, say("done")]), tools=options.pop("tools")),
        directory,
        str,
        trigger=CheckpointTrigger(event_types={object}),
        **options,
    )


async def written_in_version_1(directory: Path) -> None:
    @slice_type("page", version=1)
    @dataclass(frozen=True)
    class Page:
        text: str

    @tool
    async def write(ctx: Context) -> str:
        """Write a page."""
        ctx.session.mutate(Page).append(Page("tea"))
        return "written"

    broken = ScriptedReply(fails=(ScriptedError("structural", "the model is broken"),))
    await interrupted(reading(directory, call("write"), broken, tools=[write]))


@pytest.mark.parametrize("schema_change", ["migrate", "fresh"])
async def test_a_slice_of_an_older_version_is_migrated(directory: Path, schema_change: str) -> None:
    await written_in_version_1(directory)
    kept = []

    @slice_type("page", version=2, migrate={1: lambda old: {"lines": [old["text"]]}})
    @dataclass(frozen=True)
    class Page:
        lines: list[str]

    @tool
    async def read(ctx: Context) -> str:
        """Read what is kept."""
        kept.extend(ctx.session.query(Page).all())
        return "read"

    loop = reading(directory, call("read"), tools=[read], schema_change=schema_change)
    await loop.execute()
    assert kept == [Page(["tea"])]


async def test_a_slice_that_cannot_be_migrated_is_refused_and_nothing_is_lost(
    directory: Path,
) -> None:
    await written_in_version_1(directory)

    @slice_type("page", version=2)
    @dataclass(frozen=True)
    class Page:
        lines: list[str]

    before = (directory / "checkpoint.json").read_bytes()
    with pytest.raises(SliceChanged, match="say how one of version 1 becomes one of the next"):
        await reading(directory, tools=[]).execute()
    assert (directory / "checkpoint.json").read_bytes() == before
    assert reading(directory, tools=[]).is_incomplete


async def test_a_slice_that_cannot_be_migrated_begins_anew_where_that_was_chosen(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await written_in_version_1(directory)
    kept: list[Any] = []

    @slice_type("page", version=2)
    @dataclass(frozen=True)
    class Page:
        lines: list[str]

    @tool
    async def read(ctx: Context) -> str:
        """Read what is kept."""
        kept.append(ctx.session.query(Page).all())
        return "read"

    loop = reading(directory, call("read"), tools=[read], schema_change="fresh")
    assert (await loop.execute()).attempts == 2
    assert kept == [[]]
    assert "a checkpoint does not fit today's code; it begins anew" in warnings(caplog)


async def test_a_checkpoint_whose_slices_nobody_knows_keeps_them(directory: Path) -> None:
    """A slice that is not declared yet is adopted, and typed when it is asked for."""
    await interrupted(loop_in(directory, 2, has_worked_on("step 2")))
    text = (directory / "checkpoint.json").read_text()
    body = json.loads(text)["body"]
    body["snapshot"]["slices"]["unheard-of"] = {"values": [{"value": {"a": 1}}]}
    raw = json.dumps(body, separators=(",", ":")).encode()
    digest = sha256(raw).hexdigest().encode()
    written = b'{"format":1,"sha256":"%s","body":%s}' % (digest, raw)
    (directory / "checkpoint.json").write_bytes(written)

    await loop_in(directory).execute()
    snapshot = loop_in(directory).load_checkpoint()
    assert snapshot is not None
    assert [value.text for value in snapshot.slices["unheard-of"].values] == ['{"a":1}']
