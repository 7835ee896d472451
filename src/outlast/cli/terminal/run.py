"""Runs every command: its coroutine on a loop, its errors as sentences and exit codes.

0: done. 1: it could not be done, or something was found. 2: used wrongly. 3: the time that was
given with --timeout was up. 130: Ctrl-C.
"""

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, NoReturn, ParamSpec

import typer

from outlast.cli.terminal.output import error_out, json_line, raw_output
from outlast.errors import OutlastError

P = ParamSpec("P")

TIME_IS_UP = 3
INTERRUPTED = 130
BROKEN_PIPE = 141
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

WHAT_TO_DO = {
    "UNKNOWN_SESSION": "`outlast sessions` lists those that exist; an id is given whole.",
    "UNKNOWN_RUN": "`outlast runs` lists those that exist; an id is given whole.",
    "UNKNOWN_LANE": "`outlast lanes --session SESSION` lists those that it has.",
    "UNKNOWN_WORKER": "`outlast workers` lists those that are alive.",
    "UNKNOWN_SCHEDULE": "`outlast schedules list` lists those that are armed.",
    "UNKNOWN_DEPLOYMENT": "`outlast deployments` lists them.",
    "UNKNOWN_REQUEST": "`outlast requests` lists those that are open; an id is given whole.",
    "REQUEST_CLOSED": "`outlast show SESSION` lists the requests that are still open.",
    "NOT_AN_APPROVER": "--app MODULE:APP brings the tool's rules, --principal says who you are.",
    "INVALID_ANSWER": "`outlast show SESSION` lists what each request takes for an answer.",
    "NOTHING_TO_RETRY": "`outlast send SESSION TEXT` goes on with a session, `outlast run` starts"
    " another run.",
    "SESSION_OVER": "A session or run that is over takes nothing more: start another.",
    "TASK_CANNOT_WAIT": "A task answers once: start another.",
    "DISPATCH_CONFLICT": "Use another --dispatch-id for another message or input.",
    "INVALID_CURSOR": "`outlast logs SESSION --json` tells the cursor of each event.",
    "CURSOR_AHEAD": "Read from the beginning: leave --after away.",
}


def command(function: Callable[P, Coroutine[Any, Any, int | None]]) -> Callable[P, None]:
    """Make a coroutine function a command. What it returns is the exit code."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with raw_output(bool(kwargs.get("raw"))):
                code = asyncio.run(function(*args, **kwargs))
            sys.stdout.flush()
        except OutlastError as error:
            report(error, as_json=bool(kwargs.get("as_json")))
            code = 1
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            leave_quietly()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            error_out(f"error: not all could be written: {error.strerror}", style="bold red")
            forget_output()
            code = 1
        if code:
            raise typer.Exit(code)

    return run


def report(error: OutlastError, *, as_json: bool) -> None:
    """Say on stderr what happened, its code, and what to do about it."""
    if as_json:
        facts = {"code": error.code, "message": error.message, "details": error.details}
        error_out(json_line({"error": facts}))
        return
    error_out(f"error: {error.message}", style="bold red")
    error_out(f"  code: {error.code}")
    if hint := WHAT_TO_DO.get(error.code):
        error_out(f"  help: {hint}")


def leave_quietly() -> NoReturn:
    """End silently because the reader of the pipe is gone, the last flush included."""
    forget_output()
    raise typer.Exit(BROKEN_PIPE)


def forget_output() -> None:
    """Let what is still to be printed go nowhere: at the exit it would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
