"""Requests to a human, put as a question and answered by a line."""

import asyncio
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct

from outlast.cli.terminal.output import json_line
from outlast.core.json_text import JsonRefused, read_object
from outlast.core.record import Option
from outlast.core.visible import escaped, unambiguous
from outlast.session import Request
from outlast.session.request import request_lines

ALIASES = {"y": "approve", "yes": "approve", "n": "deny", "no": "deny"}


class ParsedAnswer(Struct, frozen=True):
    """A typed line, parsed as the answer to a request, or the `problem` with it."""

    option: str | None = None
    text: str | None = None
    args: dict[str, Any] | None = None
    problem: str = ""


def question_lines(request: Request) -> Iterator[str]:
    """Yield what to show for a request, the whole of it."""
    first, *more = request_lines(request)
    yield f"? {first}"
    yield from (f"    {line}" for line in more)
    if request.kind == "approval":
        yield "  approve, deny [REASON] or edit {JSON ARGUMENTS}"
        return
    yield from (f"  {option_text(option)}" for option in request.options)


def option_text(option: Option) -> str:
    """Return the word that chooses an option, and what it stands for."""
    is_same = option.label.lower() == option.id.lower()
    meaning = "" if is_same else f": {unambiguous(option.label)}"
    return unambiguous(option.id) + meaning


def parse_answer(request: Request, line: str) -> ParsedAnswer:
    """Return what a line says to a request."""
    if request.kind == "question":
        return to_question(request, line)
    word, _, rest = line.partition(" ")
    if request.kind == "approval" and word and "edit".startswith(word):
        return edited(rest)
    option = chosen(request, ALIASES.get(word.lower(), word.lower()))
    if option is None:
        return ParsedAnswer(problem=f"say one of: {', '.join(o.id for o in request.options)}")
    return ParsedAnswer(option, text=rest.strip() or None)


def to_question(request: Request, line: str) -> ParsedAnswer:
    """An option if the line is exactly one; else words, where those are taken."""
    for option in request.options:
        if line.lower() in (option.id.lower(), option.label.lower()):
            return ParsedAnswer(option.id)
    if request.allow_freeform:
        return ParsedAnswer(text=line)
    return ParsedAnswer(problem=f"say one of: {', '.join(o.id for o in request.options)}")


def chosen(request: Request, word: str) -> str | None:
    """Return the one option that begins with a word."""
    found = [option.id for option in request.options if option.id.startswith(word)]
    return found[0] if word and len(found) == 1 else None


def edited(text: str) -> ParsedAnswer:
    try:
        args = read_object(text.encode(errors="surrogateescape"))
    except JsonRefused as why:
        problem = f'write the arguments as JSON, edit {{"name": "value"}}: {why}'
        return ParsedAnswer(problem=problem)
    return ParsedAnswer("approve", args=args)


def editor() -> list[str]:
    """Return the command that the user edits texts with."""
    return shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")


async def edit_arguments(args: Any) -> dict[str, Any] | str:
    """Return the arguments as the user leaves them, or a sentence why there are none."""
    before = msgspec.json.format(escaped(json_line(args)), indent=2) + "\n"
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
        return read_object(after)
    except JsonRefused as why:
        return f"the arguments are no JSON object: {why}; nothing was answered"
