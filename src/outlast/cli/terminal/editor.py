"""A call's arguments in the user's editor."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from outlast.cli.terminal.output import json_line


def editor() -> list[str]:
    """Return the command that the user edits texts with."""
    return shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")


async def edit_arguments(args: Any) -> dict[str, Any] | str:
    """Return the arguments as the user leaves them, or a sentence why there are none."""
    before = msgspec.json.format(json_line(args), indent=2) + "\n"
    with TemporaryDirectory(prefix="outlast-") as directory:
        path = Path(directory, "arguments.json")
        await asyncio.to_thread(path.write_text, before, "utf-8")
        try:
            process = await asyncio.create_subprocess_exec(*editor(), str(path))
        except OSError as error:
            return f"the editor cannot be started: {error.strerror}; nothing was answered"
        if await process.wait():
            return f"the editor ended with {process.returncode}; nothing was answered"
        after = await asyncio.to_thread(path.read_bytes)
    return read(before.encode(), after)


def read(before: bytes, after: bytes) -> dict[str, Any] | str:
    if after == before:
        return "the arguments are unchanged; nothing was answered"
    try:
        return msgspec.json.decode(after, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"the arguments are no JSON object: {error}; nothing was answered"
