"""Runs on the command line: started, listed, shown and steered, in a store and on a server."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client_scene import Far, far_away
from jobs import WORKFLOWS
from terminal import Ended, Place

from outlast.server import ServerSettings
from outlast.server.key import add_key, mint

JUNE = ("--input", '"june"')
RUN = re.compile(r"run_\w+")
OVER = {"completed", "errored", "cancelled"}


def place_at(path: Path) -> Place:
    place = Place(path)
    shutil.copy(Path(__file__).with_name("jobs.py"), path)
    return place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_at(tmp_path)


def id_in(text: str) -> str:
    found = RUN.search(text)
    assert found, text
    return found[0]


# Starting


def test_a_run_is_followed_to_its_end_and_its_output_printed(place: Place) -> None:
    ended = place.run("run", "jobs:app", "report", *JUNE, "--follow")
    lines = ended.stdout.splitlines()

    assert ended.returncode == 0
    assert "session.started" in lines[0]
    assert any("tool.emitted" in line and 'written: {"title":"JUNE"}' in line for line in lines)
    assert lines[-1] == '{"title":"JUNE"}'
    assert id_in(ended.stderr) == id_in(place.run("runs").stdout)


def test_with_json_each_event_is_a_line_and_the_last_is_what_it_came_to(place: Place) -> None:
    ended = place.run("run", "jobs:app", "report", *JUNE, "--follow", "--json")
    *events, result = [json.loads(line) for line in ended.stdout.splitlines()]

    assert (ended.returncode, ended.stderr) == (0, "")
    assert [event["type"] for event in events][-1] == "session.completed"
    assert (result["status"], result["output"]) == ("completed", {"title": "JUNE"})


@pytest.mark.parametrize("given", ["@june.json", "-"])
def test_an_input_comes_from_a_file_or_the_standard_input(place: Place, given: str) -> None:
    (place.path / "june.json").write_text('"june"\n')
    ended = place.run("run", "jobs:app", "report", "-i", given, "--wait", say='"june"\n')

    assert (ended.returncode, ended.stdout) == (0, '{"title":"JUNE"}\n')


def test_without_a_wait_it_is_only_started_once_for_a_dispatch_id(place: Place) -> None:
    once = place.run("run", "jobs:app", "report", *JUNE, "--dispatch-id", "june")
    again = place.run("run", "jobs:app", "report", *JUNE, "--dispatch-id", "june")
    told = place.json("run", "jobs:app", "report", *JUNE, "--dispatch-id", "june")
    other = place.run("run", "jobs:app", "report", "-i", '"july"', "--dispatch-id", "june")
    run = id_in(once.stdout)

    assert once.stdout == f"started {run}\n"
    assert "no worker is running" in once.stderr
    assert again.stdout == f"{run} was started before; nothing was started\n"
    assert told == {"run_id": run, "duplicate": True}
    assert (other.returncode, "DISPATCH_CONFLICT" in other.stderr) == (1, True)
    assert [each["status"] for each in place.json("runs")] == ["queued"]


def test_exit_codes_tell_what_a_run_came_to(place: Place) -> None:
    fallen = place.run("run", "jobs:app", "fall", "--wait")
    asked = place.run("run", "jobs:app", "ask", "--wait")
    late = place.run("run", "jobs:app", "invoice", "--wait", "--timeout", "1s")
    cut = place.run("run", "jobs:app", "invoice", "--follow", "--timeout", "1s", "--json")

    assert fallen.returncode == 1
    assert "errored: TOOL_ERROR: ValueError: the stairs" in fallen.stderr
    assert asked.returncode == 0
    assert re.fullmatch(r"waits for req_\w+: Go on\?\n", asked.stdout)
    assert (late.returncode, late.stdout) == (3, "")
    assert "is waiting, and waits for an event that is sent to it" in late.stderr
    assert cut.returncode == 3
    assert json.loads(cut.stdout.splitlines()[-1])["status"] == "waiting"


def test_ctrl_c_leaves_a_run_that_goes_on(place: Place) -> None:
    with place.piped("run", "jobs:app", "invoice", "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "session.waiting" in line:
                break
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        code = process.wait(60)

    assert code == 130
    run = id_in(told)
    assert f"{run} goes on; look at it with: outlast runs show {run}" in told
    assert place.json("runs")[0]["status"] == "waiting"


WRONG = {
    "jobs:app": "name an app and one of its workflows, as in: outlast run shop:app report",
    "jobs:app report -i june": "a text is written '\"june\"'",
    "jobs:app report -i @gone.json": "gone.json cannot be read",
    "jobs:app report --timeout 5s": "it is for --wait or --follow",
    "jobs:app report --delay soon": "'soon' is no length of time",
    "jobs:app report --url http://127.0.0.1:1": "a server has an app of its own",
    "report --url http://127.0.0.1:1 --tenant acme": "with --url the key says so",
    "report --url http://127.0.0.1:1 --principal ada": "with --url the key says so",
}
REFUSED = {
    "jobs:app gone --wait": "UNKNOWN_WORKFLOW",
    "jobs:app report --tag customer": "a tag is NAME=VALUE",
    "jobs:app report -i 1 --wait": "INVALID_INPUT",
    "jobs:app ask -i 1": "INVALID_INPUT",
    "jobs:app report -i null --deadline noon": "INVALID_INPUT",
    "report --url nowhere": "INVALID_URL",
}


def test_what_cannot_be_started_is_told_and_leaves_nothing(place: Place) -> None:
    place.run("run", "jobs:app", "report", *JUNE)
    for words, told in {**WRONG, **REFUSED}.items():
        refused = place.run("run", *words.split())
        assert refused.returncode == (1 if words in REFUSED else 2), (words, refused.stderr)
        assert told in refused.stderr, (words, refused.stderr)
        assert refused.stdout == ""
    assert len(place.json("runs")) == 1


# Looking


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place with a run of each kind."""
    place = place_at(tmp_path_factory.mktemp("jobs"))
    place.run("run", "jobs:app", "report", *JUNE, "--tag", "customer=42", "--wait")
    place.run("run", "jobs:app", "report", *JUNE, "--wait", "--tenant", "globex")
    place.run("run", "jobs:app", "fall", "--wait")
    place.run("run", "jobs:app", "invoice", "--wait", "--timeout", "1s")
    place.run("run", "jobs:app", "ask", "--wait")
    return place


def ids(place: Place, *args: str) -> list[str]:
    return [each["run_id"] for each in place.json("runs", *args)]


def test_runs_are_listed_newest_first_and_chosen(worked: Place) -> None:
    header, *lines = worked.run("runs").stdout.splitlines()
    every = ids(worked)

    assert header.split() == ["RUN", "TENANT", "WORKFLOW", "STATUS", "STARTED", "CHANGED"]
    assert [line.split()[0] for line in lines] == every
    assert [line.split()[2] for line in lines] == ["ask", "invoice", "fall", "report", "report"]
    assert ids(worked, "list", "--workflow", "report") == every[3:]
    assert ids(worked, "--status", "waiting") == every[:2]
    assert ids(worked, "--tag", "customer=42", "--status", "completed") == every[4:]
    assert ids(worked, "--tenant", "globex") == [every[3]]
    assert worked.run("runs", "--workflow", "gone").stdout == "no runs\n"
    assert worked.run("sessions").stdout == "no sessions\n"


def test_a_list_goes_on_behind_its_last_run(worked: Place) -> None:
    every = ids(worked)
    last = worked.run("runs", "--limit", "2").stdout.splitlines()[-1]

    assert last == f"for more: --cursor {every[1]}"
    assert ids(worked, *last.split()[2:], "--limit", "500") == every[2:]


def test_a_run_is_shown_with_its_steps_and_what_it_waits_for(worked: Place) -> None:
    asking, waiting, fallen, _, done = ids(worked)
    shown = worked.run("runs", "show", done).stdout
    plain = worked.json("runs", "show", done)
    failed = worked.run("runs", "show", fallen).stdout

    assert re.search(r"^workflow +report$", shown, re.MULTILINE)
    assert re.search(r"^status +completed$", shown, re.MULTILINE)
    assert re.search(r"^tags +customer=42$", shown, re.MULTILINE)
    assert re.search(r'^output +{"title":"JUNE"}$', shown, re.MULTILINE)
    assert re.search(r"^upper\(\w{6}\)#1 +completed +1 .* JUNE$", shown, re.MULTILINE)
    assert [step["value"] for step in plain["steps"]] == ["JUNE"]
    assert (plain["input"], plain["output"]) == ("june", {"title": "JUNE"})
    assert re.search(r"^error +TOOL_ERROR: ValueError: the stairs$", failed, re.MULTILINE)
    assert "an event that is sent to it" in worked.run("runs", "show", waiting).stdout
    assert "answer with: yes | no" in worked.run("runs", "show", asking).stdout


def test_the_events_of_a_run_are_printed(worked: Place) -> None:
    printed = worked.run("logs", ids(worked)[-1]).stdout

    assert 'written: {"title":"JUNE"}' in printed
    assert printed.splitlines()[-1].split()[2] == "session.completed"


def test_a_run_that_is_not_there_and_a_wrong_filter_are_told(worked: Place) -> None:
    for words in ("show run_none", "cancel run_none", "retry run_none", "send-event run_none e"):
        refused = worked.run("runs", *words.split())
        assert refused.returncode == 1
        assert refused.stderr.splitlines() == [
            "error: there is no run run_none",
            "  code: UNKNOWN_RUN",
            "  help: `outlast runs` lists those that exist; an id is given whole.",
        ]
    for words, told in {
        "--status failed": "'failed' is none of: queued, active, waiting",
        "--tag customer": "a tag is NAME=VALUE",
        "--limit 0": "'--limit'",
        "--store memory:// --url http://127.0.0.1:1": "a server has a store of its own",
        "--url http://127.0.0.1:1 --tenant acme": "with --url the key says so",
    }.items():
        refused = worked.run("runs", *words.split())
        assert refused.returncode != 0
        assert told in refused.stderr, words


# Steering


def test_an_event_is_sent_and_the_run_goes_on_with_it(place: Place) -> None:
    started = place.run("run", "jobs:app", "invoice", "--dispatch-id", "one")
    run = id_in(started.stdout)
    payload = ("--payload", '{"cents": 500}', "--dispatch-id", "paid-1")
    sent = [place.run("runs", "send-event", run, "paid", *payload) for _ in range(2)]
    wrong = place.run("runs", "send-event", run, "paid", "--payload", "{cents}")
    ended = place.run("run", "jobs:app", "invoice", "--dispatch-id", "one", "--wait")
    over = place.run("runs", "send-event", run, "paid")

    assert [each.stdout for each in sent] == [f"sent paid to {run}\n"] * 2
    assert (wrong.returncode, "'--payload'" in wrong.stderr) == (2, True)
    assert ended.stdout == "paid {'cents': 500}\n"
    assert (over.returncode, "SESSION_OVER" in over.stderr) == (1, True)


def test_a_run_is_cancelled_and_another_tries_it_again(place: Place) -> None:
    run = id_in(place.run("run", "jobs:app", "fall", "--wait").stderr)
    (place.path / "mended").touch()
    again = place.json("runs", "retry", run, "--dispatch-id", "again")
    twice = place.json("runs", "retry", run, "--dispatch-id", "again")
    waiting = id_in(place.run("run", "jobs:app", "invoice").stdout)
    asked = place.run("runs", "cancel", waiting, "--reason", "no need")
    with place.piped("worker", "jobs:app"):
        while not {each["status"] for each in place.json("runs")} <= OVER:
            pass

    assert (again["duplicate"], twice) == (False, {**again, "duplicate": True})
    assert asked.stdout == f"asked {waiting} to stop\n"
    shown = place.json("runs", "show", again["run_id"])
    assert (shown["retry_of"], shown["output"]) == (run, "up again")
    assert place.json("runs", "show", waiting)["status"] == "cancelled"


# On a server


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Far]:
    async with far_away(ServerSettings(port=0, **settings), agents=WORKFLOWS) as far:
        yield far


async def test_a_server_runs_lists_shows_and_steers_as_a_store_does(place: Place) -> None:
    async with served() as far:

        async def there(*args: str) -> Ended:
            return await asyncio.to_thread(place.run, *args, "--url", far.url)

        followed = await there("run", "report", *JUNE, "--follow")
        started = id_in((await there("run", "invoice")).stdout)
        sent = await there("runs", "send-event", started, "paid", "--payload", "5")
        result = await (await far.app.get_run(started)).wait()
        fallen = await there("run", "fall", "--wait")
        failed = id_in(fallen.stderr)
        again = id_in((await there("runs", "retry", failed)).stdout)
        waiting = id_in((await there("run", "invoice")).stdout)
        await there("runs", "cancel", waiting)
        cancelled = await (await far.app.get_run(waiting)).wait()
        listed = (await there("runs", "--json")).stdout
        shown = (await there("runs", "show", started)).stdout

    assert (followed.returncode, followed.stdout.splitlines()[-1]) == (0, '{"title":"JUNE"}')
    assert "session.completed" in followed.stdout
    assert (sent.returncode, result.output) == (0, "paid 5")
    assert fallen.returncode == 1
    assert cancelled.status == "cancelled"
    assert [each["run_id"] for each in json.loads(listed)][:3] == [waiting, again, failed]
    assert re.search(r"^output +paid 5$", shown, re.MULTILINE)
    assert re.search(r"^sent#1 +completed", shown, re.MULTILINE)


async def test_another_tenants_key_finds_no_run_on_a_server(place: Place) -> None:
    async with served(require_key=True) as far:
        run = await far.app.run("invoice", tenant="a")

        async def key(tenant: str) -> str:
            text, info = mint(far.app.clock, tenant=tenant, name="test", scopes=("read", "send"))
            await add_key(far.app.store, info)
            return text

        async def by(token: str, *args: str) -> Ended:
            return await asyncio.to_thread(place.run, *args, "--url", far.url, "--token", token)

        ours, theirs = await key("a"), await key("b")
        assert run.id in (await by(ours, "runs")).stdout
        assert (await by(theirs, "runs")).stdout == "no runs\n"
        for words in ("show", "cancel", "retry"):
            assert "UNKNOWN_RUN" in (await by(theirs, "runs", words, run.id)).stderr
        assert "UNKNOWN_RUN" in (await by(theirs, "runs", "send-event", run.id, "paid")).stderr
        bare = await asyncio.to_thread(place.run, "runs", "--url", far.url)
        assert "UNAUTHENTICATED" in bare.stderr
        assert await run.status() == "waiting"
