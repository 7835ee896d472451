"""Workers as processes of their own: started, looked at, drained, stopped."""

from __future__ import annotations

import asyncio
import json
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from terminal import EXECUTABLE, TIMEOUT, Place, environment

from outlast import Agent, Event, Outlast, WorkerSettings
from outlast.cli.terminal.follow import follow
from outlast.core.instant import date_of
from outlast.store import WorkerInfo
from outlast.testing.scripted import ScriptedModel

ATTEMPTS, OPENED = "attempts", "opened"


class Yard(Place):
    """A directory with the yard in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        shutil.copy(Path(__file__).with_name("yard.py"), path)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Outlast]:
        """The store as somebody outside uses it, who does no work."""
        agents = [Agent(name, ScriptedModel(())) for name in ("guard", "poet")]
        store = f"sqlite:///{self.path}/outlast.db"
        async with Outlast(agents, store=store, worker=None) as app:
            yield app

    def start(self, text: str, *more: str, agent: str = "guard") -> str:
        """Start a session with some messages, each for a lane if it says `lane:`."""

        async def start() -> str:
            async with self.opened() as app:
                session = await app.start(agent, text)
                for each in more:
                    lane, _, said = each.rpartition(":")
                    await session.send(said, lane=lane or "main")
                return session.id

        return asyncio.run(start())

    @contextmanager
    def worker(self, *args: str) -> Iterator[Running]:
        """A worker that is ready."""
        with subprocess.Popen(
            [EXECUTABLE, "worker", "yard:app", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.path,
            env=environment(None),
        ) as process:
            running = Running(process)
            try:
                running.until("ready")
                yield running
            finally:
                process.kill()

    def events(self, session: str, *, until: str) -> list[Event]:
        """Follow a session's log until an event of a type, and return all up to there."""

        async def read() -> list[Event]:
            found = []
            async with self.opened() as app, asyncio.timeout(TIMEOUT):
                async for event in follow(app.store, session, internals=True):
                    found.append(event)
                    if event.type == until:
                        break
            return found

        return asyncio.run(read())

    def explained(self, session: str) -> str:
        return self.run("explain", session).stdout


class Running:
    """A worker's process, and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    @property
    def name(self) -> str:
        found = re.search(r"(wrk_\w+|w\d+)", self.said[0])
        assert found, self.said
        return found.group(1)

    def until(self, text: str) -> str:
        """Wait for a line with this text on stdout."""
        assert self.process.stdout
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
            assert ready, f"{text!r} never came: {self.said}"
            line = self.process.stdout.readline()
            assert line, f"it ended without {text!r}: {self.said} {self.errors()}"
            self.said.append(line.rstrip("\n"))
            if text in line:
                return self.said[-1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(TIMEOUT)

    def errors(self) -> str:
        assert self.process.stderr
        return self.process.stderr.read()


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


# Starting


def test_a_worker_says_in_one_line_when_it_is_ready_and_for_what(yard: Yard) -> None:
    with yard.worker("--concurrency", "7", "--name", "w1") as worker:
        assert worker.said == [
            f"worker w1 is ready: SqliteStore({yard.path}/outlast.db), agents guard, poet,"
            " 7 lanes at once"
        ]


def test_a_worker_tells_as_json_what_becomes_of_it(yard: Yard) -> None:
    with yard.worker("--json", "--name", "w1", "--agents", "poet") as worker:
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0
        worker.until("stopped")

    ready, draining, stopped = map(json.loads, worker.said)
    assert ready == {
        "worker": "w1",
        "state": "ready",
        "store": f"SqliteStore({yard.path}/outlast.db)",
        "agents": ["poet"],
        "lanes": [],
        "concurrency": 200,
        "unfinished": {},
        "deployment": "",
        "unserved": "",
    }
    assert draining == {"worker": "w1", "state": "draining", "held": 0}
    assert stopped == {"worker": "w1", "state": "stopped"}


def test_a_worker_says_what_it_resumes_or_leaves(yard: Yard) -> None:
    session = yard.start("hello")
    with yard.worker("--name", "w1", "--no-resume") as worker:
        assert re.search(r"; it leaves 1 unfinished session, oldest \d+ s$", worker.said[0])
        assert "leave what was unfinished when they started" in yard.explained(session)
        with yard.worker("--name", "w2") as other:
            assert re.search(r"; it resumes 1 unfinished session, oldest \d+ s$", other.said[0])
            yard.events(session, until="turn.completed")


def test_a_worker_carries_what_was_started_elsewhere(yard: Yard) -> None:
    session = yard.start("hello")
    with yard.worker():
        ends = yard.events(session, until="turn.completed")
    assert ends[-1].turn == "t1"


def test_a_worker_leaves_other_agents_alone(yard: Yard) -> None:
    ours, theirs = yard.start("hello"), yard.start("hello", agent="poet")
    with yard.worker("--agents", "guard") as worker:
        yard.events(ours, until="turn.completed")
        assert yard.json("workers")[0]["agents"] == ["guard"]
        told = yard.explained(theirs)
        assert "it waits for a worker: none of the 1 there are serves it" in told
        assert worker.process.poll() is None
    [lane] = yard.json("lanes", "--session", theirs)
    assert (lane["status"], lane["fence"]) == ("queued", 0)


def test_an_agent_that_the_app_does_not_have_cannot_be_served(yard: Yard) -> None:
    ended = yard.run("worker", "yard:app", "--agents", "nobody")
    assert ended.returncode == 1
    assert "code: UNKNOWN_AGENT" in ended.stderr


# Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_what_runs_is_recorded(yard: Yard, number: int) -> None:
    session = yard.start("gate")
    with yard.worker() as worker:
        yard.events(session, until="tool.started")
        worker.signal(number)
        worker.until("draining 1 lane")
        (yard.path / OPENED).touch()

        assert worker.end() == 0
        assert worker.until("stopped")

    events = yard.events(session, until="tool.completed")
    handed = [e.data.get("graceful") for e in events if e.type == "lane.taken_over"]
    assert events[-1].data["value"] == "through"
    assert handed in ([], [True])
    [lane] = yard.json("lanes", "--session", session)
    assert lane["worker"] == ""
    assert yard.json("workers") == []
    with yard.worker():
        yard.events(session, until="turn.completed")
    assert (yard.path / ATTEMPTS).read_text() == "1\n"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_a_second_signal_stops_at_once(yard: Yard, number: int, code: int) -> None:
    session = yard.start("gate")
    with yard.worker() as worker:
        yard.events(session, until="tool.started")
        worker.signal(signal.SIGTERM)
        worker.until("draining")
        worker.signal(number)

        assert worker.end() == code

    events = yard.events(session, until="tool.started")
    assert "tool.completed" not in [event.type for event in events]
    with yard.worker():
        events = yard.events(session, until="turn.completed")
    assert [e.data["reason"] for e in events if e.type == "tool.interrupted"] == ["crash"]


def test_ctrl_c_drains_what_dev_has_under_way(yard: Yard) -> None:
    (yard.path / "town.py").write_text(
        "import signal\nfrom yard import app\n"
        "print('left to the supervisor:', signal.getsignal(signal.SIGINT) == signal.SIG_IGN)\n"
    )
    session = yard.start("gate")
    with yard.terminal("dev", "town:app", "--port", "0") as terminal:
        terminal.until("left to the supervisor: True")
        terminal.until("metrics")
        yard.events(session, until="tool.started")
        terminal.type("\x03")
        (yard.path / OPENED).touch()

        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown

    events = yard.events(session, until="tool.completed")
    assert "tool.interrupted" not in [event.type for event in events]


def test_a_worker_is_drained_from_another_process(yard: Yard) -> None:
    session = yard.start("gate")
    with yard.worker() as worker:
        yard.events(session, until="tool.started")
        asked = yard.run("drain", worker.name)
        worker.until("asked to from outside")
        [seen] = yard.json("workers")
        (yard.path / OPENED).touch()

        assert worker.end() == 0

    assert asked.stdout == f"asked {worker.name} to drain\n"
    assert seen["draining"]
    assert yard.events(session, until="tool.completed")
    assert yard.json("workers") == []


def test_draining_can_be_waited_for(yard: Yard) -> None:
    yard.start("hello")
    with yard.worker("--name", "w1") as worker:
        assert yard.json("drain", "w1", "--wait") == {
            "worker": "w1",
            "requested": "drain",
            "left": True,
        }
        assert worker.end() == 0


def test_a_worker_that_nobody_knows_cannot_be_drained(yard: Yard) -> None:
    yard.start("hello")
    ended = yard.run("drain", "w9")
    assert ended.returncode == 1
    assert "error: no living worker is called w9" in ended.stderr
    assert "help: `outlast workers` lists those that are alive." in ended.stderr


# Looking


def test_workers_are_listed_with_their_load(yard: Yard) -> None:
    session = yard.start("gate")
    assert yard.run("workers").stdout == "no workers\n"
    with yard.worker("--concurrency", "7", "--lanes", "main,bulk-*", "--name", "w1") as worker:
        yard.events(session, until="tool.started")
        lines = yard.run("workers").stdout.splitlines()
        [info] = yard.json("workers")

    assert lines[0].split() == "WORKER HOST PID VERSION LANES SERVES SEEN LIVENESS STATE".split()
    assert "guard, poet on main, bulk-*" in lines[1]
    assert lines[1].split()[0] == "w1"
    assert lines[1].endswith("working")
    assert " 1/7 " in lines[1]
    assert (info["pid"], info["held"], info["concurrency"]) == (worker.process.pid, 1, 7)
    assert info["seen_at"] < info["lease_until"]


def test_providers_that_do_not_answer_are_listed_with_who_waits(yard: Yard) -> None:
    session = yard.start("busy")
    assert yard.run("providers").stdout == "all providers answer, as far as they were asked\n"
    with yard.worker():
        yard.events(session, until="session.waiting")
        lines = yard.run("providers").stdout.splitlines()
        [told] = yard.json("providers")
        tried = yard.run("providers", "--try-now", "--agent", told["agent"]).stdout

    assert lines[0].split() == "AGENT MODEL STATE SINCE NEXT TRY WAITING ERROR".split()
    assert "too many requests" in lines[1]
    assert (told["state"], told["failures"], told["waiting"]) == ("failing", 1, 1)
    assert told["since"] < told["next_try_at"]
    assert tried.splitlines()[-1] == "asked 1 to be tried now"


async def test_what_a_worker_has_counted_is_listed_as_json_is(yard: Yard) -> None:
    counted = WorkerInfo(
        worker="w1", host="h", pid=1, started_at=date_of(1), counters='{"commits":3}'
    )
    async with yard.opened() as app:
        await app.store.work.enlist(counted, 600_000)

        [info] = await asyncio.to_thread(yard.json, "workers")

    assert info["counters"] == {"commits": 3}


def test_lanes_are_listed_with_their_owner(yard: Yard) -> None:
    session = yard.start("gate", "bulk-1:hello", "hello")
    assert yard.run("lanes", "--status", "idle").stdout == "no lanes\n"
    with yard.worker("--name", "w1"):
        yard.events(session, until="tool.started")
        lines = yard.run("lanes", "--worker", "w1").stdout.splitlines()
        [main] = yard.json("lanes", "--worker", "w1")

    assert lines[0].split()[:5] == ["SESSION", "LANE", "AGENT", "STATUS", "TURN"]
    assert lines[1].split()[:6] == [session, "main", "guard", "running", "t1", "1"]
    assert (main["worker"], main["fence"], main["queued"]) == ("w1", 1, 1)
    assert {lane["lane"] for lane in yard.json("lanes", "--session", session)} == {"main", "bulk-1"}
    assert yard.run("lanes", "--status", "bored").returncode == 2


def test_a_terminal_is_shown_the_fleet_in_colour(yard: Yard) -> None:
    session = yard.start("refund")
    with yard.worker("--name", "w1"):
        yard.events(session, until="session.waiting")
        for command, shown in (
            (("workers",), "w1"),
            (("lanes",), "waiting"),
            (("explain", session), "it waits for the approval"),
        ):
            with yard.terminal(*command) as terminal:
                assert terminal.wait() == 0
            assert shown in terminal.shown


# Explaining

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"


def test_a_session_that_nobody_works_on_is_explained(yard: Yard) -> None:
    session = yard.start("hello", "and", "then")
    lines = yard.explained(session).splitlines()

    assert lines[:2] == [f"{session} of guard is queued", "lane main is queued"]
    assert re.fullmatch(
        f"  it waits for a worker: none is running on this store, since {TIME}", lines[2]
    )
    assert [re.sub(r"dlv_\w+", "(dlv)", line) for line in lines[3:]] == [
        "  the message (dlv) is next",
        "  the message (dlv) is queued behind 1",
        "  the message (dlv) is queued behind 2",
    ]


def test_what_runs_and_what_is_queued_behind_it_is_explained(yard: Yard) -> None:
    session = yard.start("gate", "one", "two", "three")
    with yard.worker("--name", "w1") as worker:
        yard.events(session, until="tool.started")
        told = yard.explained(session)

    assert re.search(f"  turn t1 is open, in step 1, since {TIME}\n", told)
    assert re.search(
        rf"  worker w1 on \S+ \(pid {worker.process.pid}\) carries it, fence 1,"
        f" lease until {TIME}\n",
        told,
    )
    assert re.search(f"  the tool gate runs in attempt 1, since {TIME}\n", told)
    assert re.search(r"  the message dlv_\w+ is queued behind 3\n", told)


@pytest.mark.parametrize(
    ("text", "ends_with", "line"),
    [
        (
            "refund",
            "session.waiting",
            r"it waits for the approval req_\w+: May refund run\? "
            rf'refund\({{"order":17}}\), since {TIME}',
        ),
        ("nap", "session.waiting", f"the tool nap sleeps, since {TIME}, until {TIME}"),
        (
            "busy",
            "session.waiting",
            "the model scripted cannot be had, and this session is the next to ask it: SCRIPTED:"
            " too many requests,"
            f" since {TIME}, next try at {TIME}",
        ),
        ("fail", "session.waiting", "turn t1 failed: SCRIPTED: the yard is closed"),
        (
            "break",
            "session.failed",
            f"the session has failed: SCRIPTED: there is no such yard, since {TIME}",
        ),
        ("hello", "session.waiting", "nothing is queued: it waits for a message"),
    ],
)
def test_what_a_session_waits_for_is_explained(
    yard: Yard, text: str, ends_with: str, line: str
) -> None:
    session = yard.start(text)
    with yard.worker():
        yard.events(session, until=ends_with)
        told = yard.explained(session)
    assert re.search(f"^  {line}$", told, re.MULTILINE), told


def test_several_lanes_are_explained_one_by_one_and_as_json(yard: Yard) -> None:
    session = yard.start("refund", "notes:gate")
    with yard.worker("--name", "w1"):
        yard.events(session, until="session.waiting")
        yard.events(session, until="tool.started")
        told = yard.json("explain", session)

    main, notes = told["lanes"]
    assert (main["lane"], main["status"]) == ("main", "waiting")
    assert (notes["lane"], notes["status"]) == ("notes", "running")
    assert [link["kind"] for link in main["links"]] == ["turn", "usage", "request"]
    [owner] = [link for link in notes["links"] if link["kind"] == "owner"]
    assert (owner["worker"], owner["fence"]) == ("w1", 1)
    [runs] = [link for link in notes["links"] if link["kind"] == "tool"]
    assert (runs["turn"], runs["step"], runs["call"], runs["attempt"]) == (
        "notes/t1",
        1,
        "notes/t1.s1.c1",
        1,
    )


# Log lines


def test_log_lines_are_json_with_the_ids_of_where_they_were_written(yard: Yard) -> None:
    session = yard.start("gate")
    with yard.worker("--log-format", "json", "--name", "w1") as worker:
        yard.events(session, until="tool.started")
        (yard.path / OPENED).touch()
        yard.events(session, until="turn.completed")
        worker.signal(signal.SIGTERM)
        worker.end()
        lines = [json.loads(line) for line in worker.errors().splitlines()]

    [gate] = [line for line in lines if line["message"] == "at the gate"]
    assert {name: gate.get(name) for name in ("logger", "level", "session", "lane")} == {
        "logger": "yard",
        "level": "info",
        "session": session,
        "lane": "main",
    }
    assert {name: gate[name] for name in ("turn", "step", "call", "attempt")} == {
        "turn": "t1",
        "step": 1,
        "call": "t1.s1.c1",
        "attempt": 1,
    }
    assert (gate["worker"], gate["fence"]) == ("w1", 1)
    [drains] = [line for line in lines if line["message"] == "the worker drains"]
    assert drains["worker"] == "w1"


def wait_at_the_gate(yard: Yard) -> None:
    """Wait until the tool has written its lines: its start is committed before it begins."""
    while not (yard.path / ATTEMPTS).exists():
        time.sleep(0.01)


def test_log_lines_are_text_unless_asked_for_otherwise(yard: Yard) -> None:
    session = yard.start("gate")
    with yard.worker("--name", "w1") as worker:
        yard.events(session, until="tool.started")
        wait_at_the_gate(yard)
        worker.process.kill()
        lines = worker.errors().splitlines()
    [line] = [line for line in lines if "at the gate" in line]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z INFO at the gate session=ses_", line)
    assert line.endswith("call=t1.s1.c1 attempt=1 worker=w1 fence=1")


@pytest.mark.parametrize("level", ["info", "debug"])
def test_every_request_of_a_model_is_a_line_for_who_looks_for_faults_only(
    yard: Yard, level: str
) -> None:
    session = yard.start("gate")
    with yard.worker("--log-level", level) as worker:
        yard.events(session, until="tool.started")
        wait_at_the_gate(yard)
        worker.process.kill()
        said = worker.errors()

    assert "at the gate" in said
    assert ("HTTP Request" in said) == (level == "debug")


def test_queues_are_set_listed_and_removed(yard: Yard) -> None:
    yard.start("hi")
    assert yard.run("queues", "list").stdout == "no queues\n"
    told = yard.run(
        "queues", "set", "reports", "--concurrency", "20", "--rate", "100", "--per", "60"
    )
    assert told.stdout == "reports: 20 at once, 100 in 60 s\n"
    changed = yard.json("queues", "set", "reports", "--rate", "0", "--singleton")
    assert changed["settings"]["concurrency"] == 20
    head, row = yard.run("queues", "list").stdout.splitlines()
    assert head.split() == ["QUEUE", "RUNNING", "WAITING", "OLDEST", "SINCE", "SETTINGS"]
    assert row.split(maxsplit=4) == ["reports", "0", "0", "-", "20 at once, a singleton"]
    assert yard.json("queues", "list") == [changed]
    assert yard.run("queues", "remove", "reports").stdout.startswith("removed reports")


async def test_a_deployment_that_is_made_current_without_a_worker_is_noted(yard: Yard) -> None:
    store = f"sqlite:///{yard.path}/outlast.db"
    promote, retire = (
        ("deployments", "promote", "v1"),
        ("deployments", "retire", "v2", "--to", "v1"),
    )
    for version in ("v2", "v1"):
        agents = [Agent(name, ScriptedModel(())) for name in ("guard",)]
        settings = WorkerSettings(deployment=version)
        async with Outlast(agents, store=store, worker=settings):
            ended = await asyncio.to_thread(yard.run, "deployments", "promote", version)
            assert (ended.stdout, ended.stderr) == (f"{version} is current\n", "")
    note = "note: no worker of v1 is running now; what is given to it waits for one\n"
    for command in (promote, retire):
        ended = await asyncio.to_thread(yard.run, *command)
        assert (ended.returncode, ended.stderr) == (0, note)
