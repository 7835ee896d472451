"""The page about HTTP: its commands, run in order against a real server, print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_scene import OF_OTHERS, teller
from terminal import EXECUTABLE, TIMEOUT, environment

from outlast import Outlast
from outlast.server import ServerSettings
from outlast.server.principal import SCOPES

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "http.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"\b(?:ses|run|dlv|req|wrk|key|outlast)_[\w-]+")
PLACE = "http://127.0.0.1:8000"
LEFT_OUT = "…"


def blocks(language: str) -> Iterator[str]:
    return (text for kind, text in BLOCK.findall(GUIDE.read_text("utf-8")) if kind == language)


def shop() -> str:
    """Return the app that the page's commands talk to."""
    return next(block for block in blocks("python") if "app = Outlast(" in block)


def steps() -> Iterator[tuple[str, str]]:
    """Give the page's commands, each with what is printed below it."""
    for block in blocks("console"):
        for step in block.removeprefix("$ ").split("\n$ "):
            command, _, printed = step.partition("\n")
            yield command, printed.rstrip("\n")


class Names:
    """What things are called on the page, and what they are called here."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._here: dict[str, str] = {}

    def known(self, text: str) -> str:
        """Return a text of the page as it is here."""
        text = text.replace(PLACE, self._url)
        return NAME.sub(lambda found: self._here.get(found.group(), found.group()), text)

    def match(self, expected: str, printed: str) -> bool:
        """Say whether something was printed as the page has it, and learn its names from it."""
        new: list[str] = []
        pattern = "".join(self._pieces(expected, new))
        found = re.fullmatch(pattern, printed, re.DOTALL)
        if found:
            self._here.update(zip(new, found.groups(), strict=True))
        return found is not None

    def _pieces(self, expected: str, new: list[str]) -> Iterator[str]:
        text = expected.replace(PLACE, self._url)
        for piece in re.split(rf"({LEFT_OUT}|{NAME.pattern})", text):
            if piece == LEFT_OUT:
                yield ".*?"
            elif not NAME.fullmatch(piece):
                yield re.escape(piece)
            elif piece in self._here:
                yield re.escape(self._here[piece])
            elif piece in new:
                yield rf"(?:\{new.index(piece) + 1})"
            else:
                new.append(piece)
                yield rf"({piece.partition('_')[0]}_[\w-]+)"


def run(command: str, directory: Path) -> str:
    path = f"PATH={Path(sys.executable).parent}:$PATH"
    ended = subprocess.run(
        ["/bin/bash", "-c", f"{path}; {command}"],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment(None),
        timeout=TIMEOUT,
        check=False,
    )
    return (ended.stdout + ended.stderr).replace("\r", "").rstrip("\n")


def test_the_commands_of_the_guide_print_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(shop(), "utf-8")
    with subprocess.Popen(
        [EXECUTABLE, "dev", "shop:app", "--port", "0", "--no-reload"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(None),
    ) as server:
        try:
            assert server.stdout
            told = ""
            while "metrics" not in told:
                told += (line := server.stdout.readline())
                assert line, told
            found = re.search(r"http://127\.0\.0\.1:\d+", told)
            assert found, told
            names = Names(found.group())
            for command, expected in steps():
                printed = run(names.known(command), tmp_path)

                assert names.match(expected, printed), f"{command}\n{printed}"
        finally:
            server.terminate()


async def test_the_routes_of_ones_own_start_answer_and_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page: dict[str, Any] = {}
    exec("\n".join(blocks("python")), page)  # noqa: S102 - as whoever copies it does
    to = httpx.ASGITransport(page["site"])
    async with (
        page["app"] as app,
        httpx.AsyncClient(transport=to, base_url="http://site") as caller,
    ):
        started = await caller.post("/orders/17/refund")
        session = await app.session(started.json()["session"])
        [request] = (await session.wait()).requests
        path = f"/sessions/{session.id}/requests/{request.request_id}/approve"

        answered, again = await caller.post(path), await caller.post(path)

    assert started.status_code == 202
    assert answered.json() == {"status": "completed", "output": "That is done."}
    assert (again.status_code, again.json()["error"]["code"]) == (409, "REQUEST_CLOSED")


def test_every_route_has_its_command_in_the_guide() -> None:
    document = Outlast([teller], store="memory://", worker=None).asgi().openapi()
    wanted = {(method, path) for path, item in document["paths"].items() for method in item}
    wanted -= set(OF_OTHERS)

    shown = {
        (method, path)
        for command, _ in steps()
        for method, path in wanted
        if method_of(command) == method and re.search(pattern(path), command)
    }

    assert wanted - shown == set()


def test_every_setting_is_in_the_guide() -> None:
    page = GUIDE.read_text("utf-8").partition("## Settings")[2].partition("\n## ")[0]
    described = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE)))

    assert described == [*ServerSettings.__struct_fields__]


def test_every_scope_is_in_the_guide() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", GUIDE.read_text("utf-8"), re.MULTILINE)

    assert set(SCOPES) <= set(rows)


def method_of(command: str) -> str:
    if found := re.search(r"-X (\w+)", command):
        return found[1].lower()
    if " -I " in command:
        return "head"
    return "post" if " -d " in command else "get"


def pattern(path: str) -> str:
    """Return what a path looks like in a command; a callback's is only known to the bank."""
    if path.startswith("/v1/callbacks/"):
        return r"cat bank\.txt"
    return re.escape(PLACE) + re.sub(r"\\{\w+\\}", r"[\\w-]+", re.escape(path)) + r"(?=[\s'?]|$)"
