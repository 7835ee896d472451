"""The real executable: run to its end, kept at work in a pipe, or at a terminal of its own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from warm import warm

EXECUTABLE = str(Path(sys.executable).with_name("outlast"))
TIMEOUT = 60
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Ended = subprocess.CompletedProcess[str]


class Place:
    """A directory with the shop in it, as a user has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copy(Path(__file__).with_name("shop.py"), path)

    def run(self, *args: str, say: str = "", store: str | None = None) -> Ended:
        """Run a command to its end, with its lines coming through a pipe."""
        return warm().run([EXECUTABLE, *args], say, self.path, environment(store))

    def json(self, *args: str, say: str = "") -> Any:
        """Run a command with --json and return what it printed."""
        ended = self.run(*args, "--json", say=say)
        assert ended.stderr == ""
        return json.loads(ended.stdout)

    def chat(self, *lines: str) -> str:
        """Hold a conversation and return its session."""
        ended = self.run("chat", "shop:app", say="\n".join(lines))
        found = re.search(r"session (ses_\w+)", ended.stderr)
        assert found, ended.stderr
        return found.group(1)

    def work(self, session: str) -> Ended:
        """Carry a session until it rests."""
        return self.run("chat", "shop:app", "--session", session)

    @contextmanager
    def piped(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command and keep its input open."""
        with subprocess.Popen(
            [EXECUTABLE, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.path,
            env=environment(None),
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def terminal(self, *args: str, columns: int = 80) -> Terminal:
        return Terminal(self.path, *args, columns=columns)


def environment(store: str | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "OUTLAST_STORE"}
    return {**kept, "TERM": "xterm", **({"OUTLAST_STORE": store} if store else {})}


class Terminal:
    """A command at a terminal: what is typed goes in, what is shown comes out."""

    def __init__(self, path: Path, *args: str, columns: int) -> None:
        self.shown = ""
        self._seen = 0
        self._screen, keyboard = pty.openpty()
        termios.tcsetwinsize(keyboard, (24, columns))
        self.process = subprocess.Popen(
            [EXECUTABLE, *args],
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            cwd=path,
            env=environment(None),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(keyboard)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def until(self, text: str) -> None:
        """Wait until a text is shown, after what was waited for before."""
        while text not in self.shown[self._seen :]:
            assert self._read(), f"{text!r} never came:\n{self.shown}"
        self._seen = self.shown.index(text, self._seen) + len(text)

    def wait(self) -> int:
        """Read on to the end and return the exit code."""
        while self._read():
            pass
        return self.process.wait(TIMEOUT)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._screen], [], [], TIMEOUT)
        assert ready, f"nothing more was shown:\n{self.shown}"
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # the other side is closed
            return False
        self.shown += STYLE.sub("", data.decode(errors="replace")).replace("\r\n", "\n")
        return bool(data)
