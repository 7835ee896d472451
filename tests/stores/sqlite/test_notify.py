"""Hints between processes: they reach those that wait, come from nobody else, and not too often."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from outlast import Agent, Outlast
from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.log import reader
from outlast.stores.sqlite.liveness import workers_directory
from outlast.stores.sqlite.notify import MOST_AT_ONCE, LoopListener, reached, to_datagram
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import ScriptedModel, say

NEVER = 3600.0
PATIENCE = 60.0

WORKER = """
import asyncio, sys
from outlast import Agent, Outlast, WorkerSettings
from outlast.testing.scripted import ScriptedModel, say

async def main():
    agent = Agent("a", ScriptedModel(lambda request: say("well")))
    settings = WorkerSettings(poll=3600.0, watch=3600.0, flush=0.0)
    async with Outlast([agent], store=f"sqlite:///{sys.argv[1]}", worker=settings):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@contextmanager
def worker(path: Path) -> Iterator[None]:
    """A worker in a process of its own, which looks for work only when it is given a hint."""
    command = [sys.executable, "-c", WORKER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.stdin.close()


def client(path: Path) -> Outlast:
    agent = Agent("a", ScriptedModel(lambda request: say("")))
    return Outlast([agent], store=f"sqlite:///{path}", worker=None)


async def test_every_wait_of_a_process_that_does_not_work_is_woken_by_a_hint(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(path):
        async with client(path) as app, asyncio.timeout(PATIENCE):
            session = await app.start("a", "go")
            assert (await session.wait()).output == "well"
            # From here on they know of each other, and nothing but a hint can wake.
            monkeypatch.setattr(reader, "POLL", NEVER)
            for _ in range(60):
                receipt = await session.send("go on")
                assert (await receipt.result()).output == "well"


async def test_a_process_that_begins_to_wait_beside_others_is_woken_by_a_hint(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(path):
        async with client(path) as first, asyncio.timeout(PATIENCE):
            session = await first.start("a", "go")
            await session.wait()
            monkeypatch.setattr(reader, "POLL", NEVER)
            for _ in range(10):
                async with client(path) as other:
                    started = await other.start("a", "go")
                    assert (await started.wait()).output == "well"


async def test_a_new_listener_looks_for_what_was_written_before_its_address_was_known(
    path: Path,
) -> None:
    async with client(path) as writer, client(path) as listening:
        await writer.start("a", "go")  # in time for nobody's address
        told = asyncio.Event()
        listening.store.work.listen(lambda *_: told.set())
        async with asyncio.timeout(PATIENCE):
            await told.wait()


async def test_more_hints_than_a_process_can_use_wait_until_it_looks_again(tmp_path: Path) -> None:
    clock = ManualClock()
    ear = LoopListener(asyncio.get_running_loop(), clock, tmp_path)
    heard: list[str] = []
    ear.listeners.add(lambda session_id, _: heard.append(session_id))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, reached(tmp_path) as path_of:
        sender.setblocking(False)
        sent = 0
        while sent < MOST_AT_ONCE + 1:
            try:
                sender.sendto(to_datagram({f"ses_{sent}": True}), path_of(ear.address))
                sent += 1
            except BlockingIOError:
                await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)

        assert len(heard) == MOST_AT_ONCE

        async with asyncio.timeout(PATIENCE):
            while len(heard) <= MOST_AT_ONCE:  # noqa: ASYNC110 - it rests for a moment
                await asyncio.sleep(0.01)
    ear.stop()


# Other users of the machine


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody can enter, while files are made without care."""
    before = os.umask(0)
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)
    os.umask(before)


def files_in(directory: Path) -> list[Path]:
    return [each for each in directory.rglob("*") if not each.is_dir()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_all_files_of_a_store_are_its_users_alone_from_their_creation(public: Path) -> None:
    path = public / "outlast.db"
    agent = Agent("a", ScriptedModel([say("well")]))
    async with Outlast([agent], store=f"sqlite:///{path}") as app:
        await (await app.start("a", "go")).wait()
        files = files_in(public)
        names = {each.name for each in files}
        assert {"outlast.db", "outlast.db-wal", "outlast.db-shm"} < names
        assert {mode(each) for each in files if not each.is_socket()} == {0o600}
        assert mode(workers_directory(path)) == 0o700
        assert any(each.is_socket() for each in files)


async def test_another_user_can_neither_read_nor_send_nor_take_a_dead_workers_name(
    public: Path,
) -> None:
    path = public / "outlast.db"
    async with client(path) as app:
        app.store.work.listen(lambda *_: None)
        [socket_path] = [each for each in files_in(public) if each.is_socket()]
        script = """
import os, socket, sys
database, place = sys.argv[1:]
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    for attempt in (
        lambda: open(database),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"1", place),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind(place + "x"),
    ):
        try:
            attempt()
        except PermissionError:
            continue
        sys.exit("it was allowed")
"""
        command = [sys.executable, "-c", script, str(path), str(socket_path)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


async def test_a_directory_of_workers_that_was_open_to_others_is_closed(public: Path) -> None:
    path = public / "outlast.db"
    workers_directory(path).mkdir()
    assert mode(workers_directory(path)) == 0o777
    async with client(path) as app:
        app.store.work.listen(lambda *_: None)
        assert mode(workers_directory(path)) == 0o700


@pytest.mark.parametrize("what", ["file", "link", "another user's"])
async def test_a_directory_of_workers_that_somebody_else_put_there_is_refused(
    public: Path, what: str
) -> None:
    path = public / "outlast.db"
    found = workers_directory(path)
    if what == "file":
        found.touch()
    elif what == "link" or os.geteuid() != 0:  # only root can make one that is another user's
        (public / "elsewhere").mkdir()
        found.symlink_to(public / "elsewhere")
    else:
        found.mkdir()
        os.chown(found, 65534, 65534)
    with pytest.raises(StoreUnavailable, match=r"outlast\.db-workers .* find out who made it"):
        async with client(path):
            pass


async def test_an_administrator_may_open_the_store_of_a_service(public: Path) -> None:
    path = public / "outlast.db"
    async with client(path):
        pass
    workers_directory(path).mkdir(exist_ok=True)
    if os.geteuid() == 0:
        for each in (path, workers_directory(path)):
            os.chown(each, 65534, 65534)
    async with client(path) as app:
        assert not await app.sessions()


async def test_a_database_that_was_made_open_to_others_is_told(
    public: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = public / "outlast.db"
    path.touch()
    path.chmod(0o640)
    async with client(path):
        pass
    [warning] = [each for each in caplog.records if each.name == "outlast.stores"]
    assert warning.levelname == "WARNING"
    assert vars(warning)["mode"] == "640"
    assert mode(path) == 0o640


async def test_all_hints_that_have_come_are_heard_at_once(tmp_path: Path) -> None:
    ear = LoopListener(asyncio.get_running_loop(), Clock(), tmp_path)
    heard: list[tuple[str, bool]] = []
    has_heard = asyncio.Event()

    def hear(session_id: str, arrived: bool) -> None:
        heard.append((session_id, arrived))
        has_heard.set()

    ear.listeners.add(hear)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for hints in ({"a": False}, {"b": True}, {"a": True, "c": False}, {"a": False}):
            with reached(tmp_path) as path_of:
                sender.sendto(to_datagram(hints), path_of(ear.address))

    await has_heard.wait()

    assert heard == [("a", True), ("b", True), ("c", False)]
    ear.stop()
