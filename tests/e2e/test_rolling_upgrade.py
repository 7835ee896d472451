"""Two releases of Outlast at work on one PostgreSQL at once, as in a rolling upgrade.

The newer one is a copy of the source with another format of records: it reads what the older one
has written, and the older one leaves alone what it cannot read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "outlast"


class Release:
    """A worker of one release, in a process of its own."""

    def __init__(self, source: Path, store: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "rolling_process.py"), store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def ask(self, do: str, session: str = "") -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "id": session}) + "\n")
        self._process.stdin.flush()
        return self.hear()

    def kill(self) -> None:
        with self._process:  # which waits for it, and closes its pipes
            self._process.kill()


@contextmanager
def at_work(source: Path, store: str) -> Iterator[Release]:
    release = Release(source, store)
    try:
        yield release
    finally:
        release.kill()


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The source of a release that writes another format, which differs in one field."""
    root = tmp_path / "newer"
    shutil.copytree(SOURCE, root / "outlast", ignore=shutil.ignore_patterns("__pycache__"))
    record, codec = root / "outlast" / "core" / "record.py", root / "outlast" / "core" / "codec.py"
    text = record.read_text()
    assert "\nFORMAT = 1\n" in text
    text = text.replace("\nFORMAT = 1\n", "\nFORMAT = 2\n")
    renamed = re.sub(
        r"(class ToolStarted\(.*?)call_id: str\n",
        r"\1call_id: str\n    by: str\n",
        text,
        count=1,
        flags=re.S,
    )
    assert renamed != text  # a field that has no default: an older record is nothing without it
    record.write_text(renamed)
    old = "UPCASTS: dict[int, dict[str, Callable[[Values], Values]]] = {}"
    assert old in codec.read_text()
    new = (
        old.removesuffix("{}") + '{1: {"tool.started": lambda e: {**e, "by": "an older release"}}}'
    )
    codec.write_text(codec.read_text().replace(old, new))
    for path in (root / "outlast").rglob("*.py"):
        if "ToolStarted(call_id" in (text := path.read_text()):
            path.write_text(text.replace("ToolStarted(call_id", 'ToolStarted(by="newer", call_id'))
    return root


def test_two_releases_work_on_one_database_and_the_older_leaves_what_it_cannot_read(
    newer: Path, postgres_url: str
) -> None:
    with at_work(SOURCE.parent, postgres_url) as old:
        assert old.hear() == 1
        sessions = [old.ask("start") for _ in range(4)]

        with at_work(newer, postgres_url) as new:
            assert new.hear() == 2
            # What the older release has written is gone on with by the newer one.
            assert [new.ask("say", each) for each in sessions[:2]] == ["done", "done"]
            begun = new.ask("start")
        # The newer one is gone, as in a rollback. The older one takes messages for what it cannot
        # read, and leaves them for the newer one; the rest goes on.
        for each in (sessions[0], begun):
            assert old.ask("send", each) == "sent"
        assert [old.ask("say", each) for each in sessions[2:]] == ["done", "done"]
        assert {old.ask("status", each) for each in (sessions[0], begun)} == {"queued"}
        assert "this log was written in format 2" in old.ask("read", sessions[1])

        with at_work(newer, postgres_url) as new:
            assert new.hear() == 2
            assert [new.ask("say", each) for each in (*sessions, begun)] == ["done"] * 5
            assert new.ask("verify") == []
