"""A terminal's keyboard, key by key, so that what is typed survives what is drawn meanwhile."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|O.|.)?")
ERASES, CLEARS, ENDS = ("\x7f", "\x08"), ("\x15", "\x0b"), "\x04"


class Keyboard:
    """Collects lines; `typed` is the one that is being typed. Ctrl-C stays a signal."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.typed = ""
        self.lines: deque[str] = deque()
        self.is_over = False
        self._changed = changed
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._before: list[object] | None = None

    def __enter__(self) -> Keyboard:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        asyncio.get_running_loop().add_reader(sys.stdin, self._read)

    def stop(self) -> None:
        """Give the terminal back as it was."""
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(sys.stdin)
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]
            self._before = None

    def _read(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), 4096)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            self.is_over = True
        for key in ESCAPES.sub("", self._decode(data)):
            self._press(key)
        self._changed()

    def _press(self, key: str) -> None:
        if key in "\r\n":
            self.lines.append(self.typed.strip())
            self.typed = ""
        elif key in ERASES:
            self.typed = self.typed[:-1]
        elif key in CLEARS:
            self.typed = ""
        elif key == ENDS:
            self.is_over = self.is_over or not self.typed
        elif key.isprintable():
            self.typed += key
