"""How the command line fails: in a sentence, with a code, and with the right exit code."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from terminal import EXECUTABLE, Place

from outlast import Outlast

COMMANDS = "chat sessions show logs send answer cancel retry end verify".split()
BOXES = "─│╭╮╰╯┏┃━\x1b"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("shop"))
    place.chat("hello")
    return place


@pytest.fixture
def empty(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_error_is_a_sentence_a_code_and_what_to_do(place: Place) -> None:
    ended = place.run("show", "ses_none")

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines() == [
        "error: there is no session ses_none",
        "  code: UNKNOWN_SESSION",
        "  help: `outlast sessions` lists those that exist; an id is given whole.",
    ]


def test_an_error_is_json_where_that_was_asked_for(place: Place) -> None:
    ended = place.run("answer", "req_none", "approve", "--json")

    assert (ended.returncode, ended.stdout) == (1, "")
    error = json.loads(ended.stderr)["error"]
    assert error["code"] == "UNKNOWN_REQUEST"
    assert error["details"] == {"request": "req_none"}


@pytest.mark.parametrize("command", ["sessions", "verify", "show ses_1", "send ses_1 hello"])
def test_looking_at_a_missing_database_says_so_and_makes_none(empty: Place, command: str) -> None:
    ended = empty.run(*command.split())

    assert ended.returncode == 1
    assert f"error: there is no database at {empty.path / 'outlast.db'};" in ended.stderr
    assert [file.name for file in empty.path.iterdir()] == ["shop.py"]


def test_an_empty_file_is_left_empty(empty: Place) -> None:
    (empty.path / "outlast.db").touch()

    assert "there is nothing in" in empty.run("sessions").stderr
    assert (empty.path / "outlast.db").stat().st_size == 0


LOOKING = [
    *("sessions", "show ses_1", "explain ses_1", "logs ses_1", "verify", "workers", "lanes"),
    *(
        "requests",
        "answer req_1 approve",
        "send ses_1 hello",
        "cancel ses_1",
        "retry ses_1",
        "end ses_1",
    ),
    *("drain wrk_1", "keys list", "keys create --scopes read", "keys revoke key_1"),
    *("schedules list", "schedules next", "webhooks list", "webhooks dead"),
]


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_another_programs_database_is_left_as_it_is(empty: Place, mode: str) -> None:
    file = empty.path / "outlast.db"
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("CREATE TABLE theirs (id)")
    before = file.read_bytes()

    for command in LOOKING:
        ended = empty.run(*command.split())

        assert ended.returncode == 1, command
        assert f"error: there is nothing of Outlast's in {file};" in ended.stderr, command
    assert file.read_bytes() == before
    assert sorted(each.name for each in empty.path.iterdir()) == ["outlast.db", "shop.py"]


async def test_a_database_that_is_at_work_and_still_in_its_log_is_known(empty: Place) -> None:
    async with Outlast(store=f"sqlite:///{empty.path / 'outlast.db'}", worker=None):
        ended = await asyncio.to_thread(empty.run, "sessions")

    assert ended.stdout == "no sessions\n"


def test_what_is_in_the_memory_of_a_process_is_not_looked_for(empty: Place) -> None:
    ended = empty.run("sessions", "--store", "memory://")

    assert ended.returncode == 1
    assert "memory://" in ended.stderr


@pytest.mark.parametrize(
    "command",
    [
        "requests --app shop:app",
        "answer req_1 approve --app shop:app",
        "keys list --app shop:app",
        "schedules list shop:app",
    ],
)
def test_a_store_is_not_named_beside_an_app(empty: Place, command: str) -> None:
    refused = empty.run(*command.split(), "--store", "sqlite:///other.db")
    meant = empty.run(*command.split(), store="sqlite:///other.db")

    assert refused.returncode == 2
    assert "an app has a store of its own" in refused.stderr
    assert "other.db" not in meant.stderr


def test_the_store_is_named_by_the_option_or_the_environment(place: Place, empty: Place) -> None:
    url = f"sqlite:///{place.path / 'outlast.db'}"

    assert len(empty.run("sessions", "--store", url).stdout.splitlines()) == 2
    assert len(empty.run("sessions", store=url).stdout.splitlines()) == 2


def test_a_file_that_is_no_database_is_refused(empty: Place) -> None:
    (empty.path / "outlast.db").write_text("not a database at all, but a text " * 100)

    ended = empty.run("sessions")

    assert ended.returncode == 1
    assert "code: STORE_CORRUPT" in ended.stderr


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        ("nowhere:app", "there is no module nowhere in"),
        ("shop:nothing", "the module shop has no nothing; there is shop:app"),
        ("shop:support", "shop:support is of type Agent, and no Outlast app; there is shop:app"),
        ("broken:app", "importing broken failed: ZeroDivisionError: division by zero"),
        ("lacking:app", "importing lacking failed: ModuleNotFoundError: No module named 'gone'"),
        (
            "torn:app",
            "importing torn failed: SyntaxError: '(' was never closed ({}/torn.py, line 2)",
        ),
        (
            "twins:app",
            "importing twins failed: InvalidDefinition: two agents are named a"
            " ({}/twins.py, line 3)",
        ),
    ],
)
def test_an_app_that_cannot_be_loaded_is_an_error(empty: Place, app: str, sentence: str) -> None:
    (empty.path / "broken.py").write_text("1 / 0")
    (empty.path / "lacking.py").write_text("import gone")
    (empty.path / "torn.py").write_text("a = 1\nb = (")
    (empty.path / "twins.py").write_text(
        "from outlast import Agent, Outlast\n"
        "from outlast.testing import ScriptedModel\n"
        "app = Outlast([Agent('a', ScriptedModel([])) for _ in range(2)])\n"
    )

    ended = empty.run("chat", app)

    assert ended.returncode == 1
    assert f"error: {sentence.format(empty.path)}" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["worker", "chat"])
def test_a_model_that_cannot_be_had_is_told_before_any_work_is_taken(
    empty: Place, command: str
) -> None:
    (empty.path / "keyless.py").write_text(
        "from outlast import Agent, Outlast\napp = Outlast([Agent('a', 'nobody:gpt-5')])\n"
    )

    ended = empty.run(command, "keyless:app", say="hello")

    assert ended.returncode == 1
    assert "error: this worker cannot serve agent a: the model 'nobody:gpt-5'" in ended.stderr
    assert "code: INVALID_DEFINITION" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not empty.json("sessions")


def test_talking_to_an_agent_that_is_not_there_is_an_error(empty: Place) -> None:
    ended = empty.run("chat", "shop:app", "sales")

    assert ended.returncode == 1
    assert "this app has no agent sales; it has: support" in ended.stderr


def test_a_session_that_is_not_there_is_told_whatever_agents_there_are(empty: Place) -> None:
    (empty.path / "two.py").write_text(
        "from outlast import Agent, Outlast\n"
        "from outlast.testing import ScriptedModel\n"
        "app = Outlast([Agent(name, ScriptedModel([])) for name in ('a', 'b')])\n"
    )

    unnamed, lost = empty.run("chat", "two:app"), empty.run("chat", "two:app", "--session", "nope")

    assert "error: say which agent to talk to: a, b" in unnamed.stderr
    assert "error: there is no session nope" in lost.stderr
    assert "code: UNKNOWN_SESSION" in lost.stderr


@pytest.mark.parametrize(
    "args",
    [
        "chat shop",
        "sessions --status asleep",
        "sessions --limit none",
        "answer req_1 approve --args [1]",
        "show",
        "frobnicate",
    ],
)
def test_wrong_usage_exits_with_two(place: Place, args: str) -> None:
    ended = place.run(*args.split())

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Usage: outlast" in ended.stderr
    assert not set(ended.stderr) & set(BOXES)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("requests frob req_1", "'ACTION': 'frob' is none of: approve, deny, edit\n"),
        ("worker shop:app --log-level frob", "'--log-level': 'frob' is none of: debug, info,"),
        ("serve shop:app --log-format frob", "'--log-format': 'frob' is none of: text, json\n"),
        ("sessions --status frob", "'--status': 'frob' is none of: running,"),
        ("lanes --status frob", "'--status': 'frob' is none of: running,"),
        ("usage --since frob", "'--since': 'frob' is no day such as 2026-01-31\n"),
        ("worker shop:app --grace frob", "'--grace': 'frob' is no length of time such as 30s,"),
        ("queues set q --per 0.5y", "'--per': '0.5y' is no length of time such as 30s,"),
    ],
)
def test_a_word_that_is_none_of_a_few_is_told_with_where_it_stands(
    place: Place, args: str, sentence: str
) -> None:
    ended = place.run(*args.split())

    assert ended.returncode == 2
    assert f"Invalid value for {sentence}" in ended.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(place: Place, command: str) -> None:
    ended = place.run(command, "--help")

    assert ended.returncode == 0
    assert f"Example: outlast {command}" in ended.stdout
    assert "--json" in ended.stdout
    assert not set(ended.stdout) & set(BOXES)


def test_what_a_command_does_is_said_whole_in_the_list_of_commands(place: Place) -> None:
    ended = place.run("--help")

    told = " ".join(ended.stdout.split())
    assert "dev Work on an app's sessions and serve it over HTTP, in one process, for devel" in told
    assert "..." not in told.partition("Commands:")[2]


def test_a_shell_completes_the_words_of_a_command(place: Place) -> None:
    words = {"_OUTLAST_COMPLETE": "complete_bash", "COMP_WORDS": "outlast mile", "COMP_CWORD": "1"}
    ended = subprocess.run(
        [EXECUTABLE], capture_output=True, text=True, check=False, env=os.environ | words
    )

    assert ended.stdout.split() == ["milestones"]


def test_a_table_on_a_narrow_terminal_keeps_its_ids_whole(place: Place) -> None:
    [session] = place.json("sessions")

    with place.terminal("lanes", columns=40) as terminal:
        assert terminal.wait() == 0

    assert session["session_id"] in terminal.shown


def test_an_agent_without_skills_is_said_to_have_none(place: Place) -> None:
    assert place.run("skills", "shop:app", "support").stdout == "agent support has no skills\n"


def test_a_terminal_is_given_help_too(place: Place) -> None:
    with place.terminal("send", "--help") as terminal:
        assert terminal.wait() == 0
    assert "--dispatch-id" in terminal.shown


def test_the_module_runs_like_the_executable(place: Place) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "outlast.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout == place.run("--version").stdout
    assert ended.stdout.startswith("outlast 0.")


def test_a_reader_that_stops_reading_is_no_error(place: Place) -> None:
    [info] = place.json("sessions")
    command = f"while outlast logs {info['session_id']}; do :; done | head -n 1"

    ended = subprocess.run(
        ["/bin/bash", "-c", f"PATH={Path(sys.executable).parent}:$PATH; {command}"],
        capture_output=True,
        text=True,
        cwd=place.path,
        check=False,
    )

    assert ended.stdout.count("\n") == 1
    assert ended.stderr == ""


@pytest.mark.parametrize("command", ["sessions", "sessions --json", "verify"])
def test_a_full_disk_behind_the_output_is_told_in_a_sentence(place: Place, command: str) -> None:
    ended = subprocess.run(
        ["/bin/bash", "-c", f"{EXECUTABLE} {command} > /dev/full"],
        capture_output=True,
        text=True,
        cwd=place.path,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr == "error: not all could be written: No space left on device\n"


def test_what_a_pipe_gets_has_no_boxes_and_no_colours(place: Place) -> None:
    [info] = place.json("sessions")
    for command in (
        "sessions",
        "verify",
        f"show {info['session_id']}",
        f"logs {info['session_id']}",
    ):
        assert not set(place.run(*command.split()).stdout) & set(BOXES)


@pytest.mark.parametrize("command", ["sessions --agent", "verify", "drain", "schedules pause"])
def test_what_is_no_text_is_refused(place: Place, command: str) -> None:
    ended = place.run(*command.split(), "caf\udce9")

    assert ended.returncode == 2
    assert "is no text in UTF-8" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_cannot_be_the_root_of_all_files(place: Place) -> None:
    ended = place.run("sessions", "--store", "sqlite:////")

    assert ended.returncode == 1
    assert "UNSUPPORTED_STORE" in ended.stderr
