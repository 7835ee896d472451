"""Log lines of a worker: a phrase and its fields, as text or as JSON."""

import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from textwrap import indent
from typing import Any

from outlast.cli.terminal.output import json_line
from outlast.core.visible import visible, visible_line
from outlast.log_context import NAMES, KnownIds

STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""Attributes that every log record has; all others were given as fields."""
PLAIN = re.compile(r"[^\s\"=]+")
"""A value that ends at the next blank, and cannot be taken for further fields."""
MOST = 20_000
"""Characters of a text in a line: what a tool raises may be megabytes, and is in its session."""
TALKATIVE = ("httpx", "httpx2", "httpcore", "httpcore2")
"""They have a line for every call of a model."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a line says beside its phrase: the ids first, in their order."""
    given = {name: value for name, value in vars(record).items() if name not in STANDARD}
    ids = {name: given.pop(name) for name in NAMES if name in given}
    return {**ids, **given}


class JsonFormatter(logging.Formatter):
    """One JSON object on a line: at, level, logger, message, the ids, and other fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cut(record.getMessage()),
            **{cut(name): cut(value) for name, value in fields_of(record).items()},
        }
        if record.exc_info:
            line["exception"] = cut(self.formatException(record.exc_info))
        return json_line(line)


class TextFormatter(logging.Formatter):
    """The same for people: `2026-11-16T02:27:22.036Z INFO phrase session=… worker=…`.

    Only a record begins at the left: nothing that a phrase, a field or a traceback says makes
    a line that looks like another record's.
    """

    def format(self, record: logging.LogRecord) -> str:
        phrase = visible_line(cut(record.getMessage()))
        line = f"{moment(record)} {record.levelname} {phrase}{words(fields_of(record))}"
        if record.exc_info:
            line += "\n" + indent(visible(cut(self.formatException(record.exc_info))), "  ")
        return line


def cut(value: Any) -> Any:
    """Return a value; of a long text its beginning and its end, where a traceback says most."""
    if not isinstance(value, str) or len(value) <= MOST:
        return value
    half = MOST // 2
    return f"{value[:half]} […{len(value) - MOST:,} characters…] {value[-half:]}"


def words(fields: Mapping[str, Any]) -> str:
    return "".join(
        f" {visible_line(cut(name))}={value_of(value)}" for name, value in fields.items()
    )


def value_of(value: Any) -> str:
    """Return a field's value; one that could be read as more than a value is quoted."""
    text = cut(str(value))
    return text if PLAIN.fullmatch(text) and text.isprintable() else json_line(text)


def moment(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class NoticeFormatter(logging.Formatter):
    """The phrase alone, for people who run a command and wait."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{level}{visible_line(record.getMessage())}"


def show_notices() -> None:
    """Have on stderr what a session that is waited for waits for, and that it goes on."""
    log = logging.getLogger("outlast.session")
    handler = logging.StreamHandler()
    handler.setFormatter(NoticeFormatter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def set_up_logging(kind: str, level: str) -> None:
    """Have all log lines of this process on stderr, with the ids of where they were written."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    handler.addFilter(KnownIds())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for name in TALKATIVE if level != "debug" else ():
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
