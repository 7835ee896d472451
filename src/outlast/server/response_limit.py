"""Answers that are made faster than they are taken: how much of them is held, and for how long.

An answer is handed to the connection in slices, each when the one before was taken. Until the last
one it is held, and counted for the caller. If all answers to a caller hold too much, the one of
which nothing was taken for longest is ended: its reader can come again, and those that read go on.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Message, Scope, Send

from outlast.server.principal import caller_of

SLICE = 64 * 1024
SMALL = 16 * 1024
"""Bytes below which slices may follow one another at once."""


class ReaderStalled(Exception):
    """A client takes too little of its answer; only ending the connection can tell it."""


class HeldAnswer:
    """One answer that was not taken to its end, and when some of it last was."""

    def __init__(self, size: int, now: float) -> None:
        self.size = size
        self.taken_at = now
        self.patience: asyncio.Timeout | None = None
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True  # a slice that is just taken leaves its timeout before that is over
        if self.patience is not None:
            self.patience.reschedule(0)  # long ago: what waits on it times out at once


class UnsentBytes:
    """The bytes of answers that all callers together have not taken yet."""

    def __init__(self, most: int, monotonic: Callable[[], float]) -> None:
        self._most = most
        self._monotonic = monotonic
        self._answers: dict[str, list[HeldAnswer]] = {}

    @contextmanager
    def hold(self, caller: str, size: int) -> Iterator[HeldAnswer]:
        """Count an answer for as long as it is sent; end others of the caller if it is too much."""
        answer = HeldAnswer(size, self._monotonic())
        answers = self._answers.setdefault(caller, [])
        answers.append(answer)
        self._make_room(answers)
        try:
            yield answer
        finally:
            if answer in answers:
                answers.remove(answer)
            if not answers:
                self._answers.pop(caller, None)

    def took(self, answer: HeldAnswer) -> None:
        answer.taken_at = self._monotonic()

    def _make_room(self, answers: list[HeldAnswer]) -> None:
        """End the answers that stand still longest; the newest stays, whatever its size."""
        while len(answers) > 1 and sum(each.size for each in answers) > self._most:
            # Not the largest: one that is read quickly goes on, whatever its size.
            stalled = min(answers[:-1], key=lambda each: each.taken_at)
            answers.remove(stalled)
            stalled.end()


class SlicedSend:
    """Sends an answer slice by slice, and no longer than its reader takes it."""

    def __init__(self, scope: Scope, send: Send, unsent: UnsentBytes, timeout: float) -> None:
        self._scope = scope
        self._send = send
        self._unsent = unsent
        self._timeout = timeout

    async def __call__(self, message: Message) -> None:
        body = message.get("body", b"")
        try:
            if len(body) <= SLICE:
                async with asyncio.timeout(self._timeout):
                    await self._send_and_yield(message)
            else:
                await self._send_slices(message, memoryview(body))
        except TimeoutError:
            raise ReaderStalled from None

    async def _send_slices(self, message: Message, body: memoryview) -> None:
        with self._unsent.hold(caller_of(self._scope), len(body)) as answer:
            for start in range(0, len(body), SLICE):
                piece = bytes(body[start : start + SLICE])
                more = message.get("more_body", False) or start + SLICE < len(body)
                async with asyncio.timeout(self._timeout) as answer.patience:
                    await self._send_and_yield({**message, "body": piece, "more_body": more})
                if answer.is_ended:
                    raise ReaderStalled
                self._unsent.took(answer)

    async def _send_and_yield(self, message: Message) -> None:
        """Send a slice, and let others have the event loop if it was not a small one.

        The system takes megabytes of an answer before it makes the sender wait. Without a pause
        one answer would be written that far in one go, and every other caller would wait for it.
        """
        await self._send(message)
        if len(message.get("body", b"")) >= SMALL:
            await asyncio.sleep(0)
