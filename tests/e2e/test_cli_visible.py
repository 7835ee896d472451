"""Every surface shows a hostile text with everything in it visible; no line of it can be forged."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from scene import FAST
from typer.testing import CliRunner, Result

from outlast import Agent, Outlast, tool
from outlast.cli import make_app
from outlast.cli.terminal import output
from outlast.cli.terminal.log_format import JsonFormatter, NoticeFormatter, TextFormatter
from outlast.cli.terminal.prompt import edit_arguments, question_lines
from outlast.cli.terminal.transcript import Transcript
from outlast.core.event import Event
from outlast.core.record import Option
from outlast.core.visible import UNSEEN
from outlast.integration.channel.outgoing import compose
from outlast.prompts import PromptTemplate, Section
from outlast.session import Request
from outlast.testing.scripted import ScriptedModel, ScriptedReply, calls, say

HIDDEN = "".join(
    char
    for char in map(chr, range(1, sys.maxunicode + 1))
    if category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in "\n\t"
)
FORGED = "\n2026-01-01T00:00:00.000Z ERROR forged\r\n  9  boss asks: harmless()"
HOSTILE = f"ab\x1b\x9b{HIDDEN}\u115f\u2800\ufe0f\U000e0041{FORGED}\x1b]0;owned\x07"

APP = """
from test_cli_visible import hostile_app
app = hostile_app("sqlite:///outlast.db")
"""


AT = datetime(2026, 1, 1, tzinfo=UTC)


def event_of(kind: str, data: dict[str, Any]) -> Event:
    return Event(offset=1, type=kind, at=AT, lane="main", data=data, version=1)


@tool(approval="always")
async def shell(note: str, command: str) -> str:
    """Run a command."""
    return command


@tool
async def fail(text: str) -> str:
    """Fail."""
    raise RuntimeError(text)


def hostile(request: Any) -> ScriptedReply:
    """Say, call and ask for hostile things, one after the other."""
    told = len(request.view.messages)
    if told == 1:
        return calls(("fail", {"text": HOSTILE}), text=HOSTILE)
    if told == 3:
        return calls(("shell", {"note": HOSTILE, "command": HOSTILE}), text=HOSTILE)
    return say(HOSTILE)


def hostile_app(store: str) -> Outlast:
    told = PromptTemplate([Section("told", HOSTILE)])
    agent: Agent[Any, Any] = Agent(
        "a", ScriptedModel(hostile), instructions=told, tools=[shell, fail]
    )
    return Outlast([agent], store=store, worker=FAST)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a store whose first session waits for an approval; the second is done."""
    path = tmp_path_factory.mktemp("hostile")
    (path / "hostile.py").write_text(APP)

    async def fill() -> None:
        async with hostile_app(f"sqlite:///{path / 'outlast.db'}") as app:
            for option in ("deny", ""):
                session = await app.start("a", HOSTILE, lane="main")
                result = await session.wait()
                if option:
                    [request] = result.requests
                    await session.answer(request.request_id, option, text=HOSTILE)
                    await session.wait()

    asyncio.run(fill())
    return path


Run = Callable[..., Result]


@pytest.fixture
def run(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("OUTLAST_STORE", f"sqlite:///{store / 'outlast.db'}")
    monkeypatch.chdir(store)
    monkeypatch.setitem(sys.modules, "test_cli_visible", sys.modules[__name__])

    def invoke(*args: str, say: str = "") -> Result:
        sys.modules.pop("hostile", None)
        return CliRunner().invoke(make_app(), args, input=say)

    yield invoke
    sys.modules.pop("hostile", None)


def ids(run: Run) -> list[str]:
    return [each["session_id"] for each in json.loads(run("sessions", "--json").stdout)]


def check_shown(text: str) -> None:
    """Nothing in a text is unseen but the ends of lines, and nothing was dropped silently."""
    assert sorted(set(UNSEEN.findall(text)) - {"\n"}) == []
    assert "\\u001b" in text


COMMANDS = [
    "logs SESSION",
    "logs SESSION --internals --json",
    "show SESSION",
    "show SESSION --json",
    "chat hostile:app --session SESSION",
    "chat hostile:app --session SESSION --json",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("which", [0, 1], ids=["waiting", "done"])
def test_a_command_shows_a_hostile_session_with_everything_visible(
    run: Run, command: str, which: int
) -> None:
    session = ids(run)[which]
    ended = run(*command.replace("SESSION", session).split(), say="/quit\n")
    assert ended.exit_code == 0, ended.output
    if not command.startswith("chat") or not which:  # a session at rest shows nothing anew
        check_shown(ended.stdout)
    assert "\x1b" not in ended.output


OTHERS = [
    "explain SESSION",
    "explain SESSION --json",
    "verify SESSION",
    "milestones SESSION",
    "prompt hostile:app a --session SESSION",
    "sessions --failed",
    "sessions --failed --json",
    "lanes",
    "providers",
]


@pytest.mark.parametrize("command", OTHERS)
def test_no_other_command_prints_what_cannot_be_seen(run: Run, command: str) -> None:
    for session in ids(run):
        ended = run(*command.replace("SESSION", session).split())
        assert ended.exit_code == 0, ended.output
        assert set(UNSEEN.findall(ended.output)) <= {"\n"}
        assert "ERROR forged\n" not in ended.output


@pytest.mark.parametrize("args", [["requests", "--once"], ["requests", "--json"]])
def test_the_list_of_requests_is_one_row_each_and_visible(run: Run, args: list[str]) -> None:
    shown = run(*args).stdout
    check_shown(shown)
    assert len(shown.splitlines()) == (1 if "--json" in args else 2)


def test_a_pipe_gets_texts_as_they_are_only_with_raw(run: Run) -> None:
    done = ids(run)[1]
    assert HOSTILE.replace("\r\n", "\n") in run("show", done, "--raw").stdout
    assert "\x9b" in run("logs", done, "--raw").stdout
    assert "\x9b" not in run("show", done).stdout + run("logs", done).stdout
    as_json = run("show", done, "--json", "--raw").stdout  # escapes are the same value
    check_shown(as_json)
    assert json.loads(as_json)["last_turn"]["text"] == HOSTILE


class FakeTerminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [StringIO, FakeTerminal], ids=["pipe", "terminal"])
@pytest.mark.parametrize("name", ["out", "write", "error_out", "table", "fields", "json_out"])
def test_every_way_to_print_makes_visible(
    name: str, kind: type[StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    streams = kind(), kind()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    match name:
        case "table":
            output.table(("A", "B"), [(HOSTILE, "b")])
        case "fields":
            output.fields([("name", HOSTILE)])
        case "json_out":
            output.json_out({"a": HOSTILE, HOSTILE: 1})
        case _:
            getattr(output, name)(HOSTILE)
    shown = "".join(stream.getvalue() for stream in streams)
    assert sorted(set(UNSEEN.findall(shown)) - {"\n"}) == []
    assert "\\u001b" in shown.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("kind", [StringIO, FakeTerminal], ids=["pipe", "terminal"])
def test_a_terminal_is_never_sent_texts_as_they_are(
    kind: type[StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", stream := kind())
    with output.raw_output(wanted=True):
        output.out("a\x9bb")
    assert ("\x9b" in stream.getvalue()) is (kind is StringIO)


# Logs


def log_record(text: str) -> logging.LogRecord:
    """A record that has a hostile text wherever one can be."""
    try:
        raise RuntimeError(text) from ValueError(text)
    except RuntimeError:
        exc_info = sys.exc_info()
    record = logging.LogRecord("outlast", logging.ERROR, "x.py", 1, text, (), exc_info)
    vars(record).update({"session": "ses_1", "lane": text, "error": text, text: 1, "code": 'a"=b'})
    return record


def test_a_text_log_line_cannot_be_forged() -> None:
    lines = TextFormatter().format(log_record(HOSTILE)).splitlines()
    text = "\n".join(lines)
    check_shown(text)
    assert lines[0].startswith(("19", "20"))
    assert all(line.startswith("  ") for line in lines[1:] if line)
    assert 'lane="ab' in lines[0]
    assert lines[0].endswith('code="a\\"=b"')
    assert " session=ses_1 " in lines[0]


def test_a_word_in_a_log_line_hides_nothing() -> None:
    record = logging.LogRecord("outlast", logging.INFO, "x.py", 1, "hello", (), None)
    record.lane = "a\u202eb"
    assert TextFormatter().format(record).endswith(' lane="a\\u202eb"')


def test_a_text_on_one_line_hides_nothing() -> None:
    assert output.one_line(" a\u202e \n b") == "a\\u202e b"


def test_a_json_log_line_is_one_line_without_c1_controls() -> None:
    line = JsonFormatter().format(log_record(HOSTILE))
    check_shown(line)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["lane"] == HOSTILE


def test_a_notice_to_who_waits_is_one_line_with_everything_visible() -> None:
    """Its phrase quotes a provider's error, and names that others chose."""
    line = NoticeFormatter().format(log_record(HOSTILE))
    check_shown(line)
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_half_a_character_does_not_lose_a_log_line(formatter: logging.Formatter) -> None:
    assert "caf\\udce9" in formatter.format(log_record("caf\udce9"))


# Channels


async def test_a_channel_is_told_with_everything_visible(store: Path) -> None:
    async with Outlast(store=f"sqlite:///{store / 'outlast.db'}", worker=None) as app:
        for info in await app.sessions():
            session = await app.session(info.session_id)
            async for event in session.events(follow=False):
                text = compose(event, await session.info(), HOSTILE, event.at).text
                assert sorted(set(UNSEEN.findall(text)) - {"\n", "\t"}) == []
                if event.type in ("request.opened", "turn.completed"):
                    check_shown(text.replace("\t", ""))


async def test_a_channel_is_told_of_sign_ins_and_failures_with_everything_visible(
    store: Path,
) -> None:
    async with Outlast(store=f"sqlite:///{store / 'outlast.db'}", worker=None) as app:
        [info, *_] = await app.sessions()
    sign_in = {"request_id": "aut_1", "url": "https://a.example", "expires_at": AT.isoformat()}
    for kind, data in (
        ("authorization.required", {**sign_in, "connection": HOSTILE, "principal": HOSTILE}),
        ("turn.failed", {"error": {"code": "CODE", "message": HOSTILE}}),
    ):
        text = compose(event_of(kind, data), info, None, AT).text
        check_shown(text.replace("\t", ""))


# What people choose from, edit and open


COPY = "payp\u0430l"
"""With a Cyrillic letter in it."""


def test_no_option_looks_like_another_word() -> None:
    request = Request(
        request_id="req_1",
        kind="question",
        prompt="Where to?",
        options=(Option(COPY, f"{COPY}.com\u200b"), Option("no", "No")),
        allow_freeform=False,
        session_id="ses_1",
    )
    shown = list(question_lines(request))
    assert "  payp\\u0430l: payp\\u0430l.com\\u200b" in shown


async def test_arguments_are_edited_as_they_were_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", f"cp -t {tmp_path}")
    assert "unchanged" in await edit_arguments({"to": COPY})
    assert "payp\\u0430l" in (tmp_path / "arguments.json").read_text()


def test_an_address_to_sign_in_at_looks_like_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"connection": "hub", "url": f"https://{COPY}.com/in"}
    Transcript(as_json=False).show(event_of("authorization.required", data))
    assert "https://payp\\u0430l.com/in" in capsys.readouterr().out


# No other way out


def test_only_one_module_of_the_command_line_prints_text() -> None:
    """Elsewhere `print` gets nothing, JSON, or a text that is quoted by `repr`."""
    source = Path(output.__file__).parents[1]
    odd = []
    for path in sorted(source.rglob("*.py")):
        if path == Path(output.__file__) or "demo" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "Console"):
                given = ast.unparse(node.args[0]) if node.args else ""
                if given and not given.startswith("json_line(") and "!r}" not in given:
                    odd.append(f"{path.name}: {given}")
    assert odd == []


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_line_of_a_log_has_the_beginning_and_the_end_of_a_long_text(
    formatter: logging.Formatter,
) -> None:
    line = formatter.format(log_record("begin" + "x" * 5_000_000 + "end"))

    assert len(line) < 200_000
    assert "begin" in line
    assert "xend" in line
    assert "4,9" in line
