"""The circuit breakers of providers, as one worker knows them.

Owns what this worker remembers of them, and the documents by which all workers share them. A
provider that answers costs nothing: it is looked up only after a call to it has failed. The rules
are in `core/breaker.py`; the line in which lanes wait for an open one is the store's topic `limit`,
and `start_gate.py` puts them into it.
"""

import asyncio
from collections.abc import Collection, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core.breaker import (
    Breaker,
    FailuresInARow,
    Provider,
    after_answers,
    after_failure,
    with_probe,
)
from outlast.core.policy import MINUTE
from outlast.core.result import Answered, ModelFailed
from outlast.core.visible import visible_line
from outlast.engine.executor import Executor
from outlast.engine.lane_folds import insist
from outlast.log.breaker import document_of, end_pause, find_breaker, list_breakers, put_breaker
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast.engine")

FRESH = 1.0
"""For so many seconds what a worker has read of a breaker is not read again."""
EVERYBODY = 2**31 - 1
"""The size of the last group: all that are left."""


class KnownBreaker(Struct):
    """A breaker as it was read `read_at`, with the version of its document."""

    breaker: Breaker | None
    version: int
    read_at: float


class ProviderBreakers:
    """The breakers of the providers that lanes of one worker ask."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, KnownBreaker] = {}
        self._failures: dict[str, FailuresInARow] = {}
        self._answers: dict[str, int] = {}
        self._proven: set[str] = set()
        self._probes: dict[str, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def look_around(self, executors: Mapping[str, Executor]) -> None:
        """Learn, before the first call, which providers do not answer the others.

        A deployment may be how somebody mends that: by another model, or by what was missing. So
        lanes that wait for a model that was replaced go on, and providers that time alone does not
        mend are asked at once.
        """
        for agent, executor in executors.items():
            await self.forget_replaced(agent, executor.providers())
        for breaker in await insist(self._clock, list_breakers, self._store):
            if breaker.provider.agent in executors:
                if breaker.blocked:
                    end = partial(end_pause, if_blocked=True)
                    await insist(self._clock, end, self._store, breaker.provider)
                await self._read(breaker.provider)

    async def forget_replaced(self, agent: str, providers: Collection[Provider]) -> None:
        """Remove the breakers of providers that an agent does not ask, or wait for, any more.

        Workers with older code that still ask one open its breaker again.
        """
        for breaker in await insist(self._clock, list_breakers, self._store):
            provider = breaker.provider
            if provider.agent != agent or provider in providers:
                continue
            known = await self._read(provider)
            while known.breaker and not await self._remove(known):
                known = await self._read(provider)
            log.info("agent %s does not wait for %s any more", agent, provider.model)
            await self.leave_line(provider)

    async def look(self, provider: Provider, *, fresh: bool = False) -> Breaker | None:
        """Return the breaker of a provider, if there is one, as it was a second ago at most."""
        known = self._known.get(provider.name)
        if fresh or known is None or self._is_old(known):
            known = await self._read(provider)
        if fresh and self._is_old(known):
            # The answer took its time, and others may have failed meanwhile. Once more and no more:
            # a store that is slow for long must not keep everybody from asking.
            known = await self._read(provider)
        return known.breaker

    def _is_old(self, known: KnownBreaker) -> bool:
        return self._clock.monotonic() - known.read_at > FRESH

    async def find_open(self, provider: Provider | None) -> Breaker | None:
        """Return the breaker of a provider if it is open: all calls to it stand in line."""
        if provider is None or provider.name not in self._known:
            return None
        breaker = await self.look(provider)
        return breaker if breaker and breaker.state == "open" else None

    async def find_away(
        self, provider: Provider | None, session_id: str, call_id: str, *, has_others: bool
    ) -> ModelFailed | None:
        """Return how a call would fail that is not worth making: others have found that out.

        A call that `has_others` to ask goes on with those instead of standing in line. It asks
        itself now and then; and so does any call, where the first in line does not.
        """
        # The usual case, and the whole cost of breakers while every provider answers.
        if not self._known or provider is None:
            return None
        if (breaker := await self.find_open(provider)) is None:
            return None
        may_ask = has_others or breaker.is_overdue(self._store.clock.earliest())
        if may_ask and await self._take_probe(provider):
            self._probes[provider.name] = session_id, call_id
            return None
        return ModelFailed(
            breaker.error,
            kind="blocked" if breaker.blocked else "transient",
            backoff=max(0, breaker.next_at - self._store.clock.earliest()),
            is_asked=False,
            is_away=True,
        )

    @property
    def knows_any(self) -> bool:
        """Whether a breaker is known at all. None is, while every provider answers."""
        return bool(self._known)

    def concerns(self, provider: Provider | None, result: Answered | ModelFailed) -> bool:
        """Say whether a result tells something new of a provider. Most do not."""
        if provider is None:
            return False
        if isinstance(result, ModelFailed):
            return True
        return bool(self._known) and provider.name in self._known

    async def note(
        self,
        provider: Provider,
        result: Answered | ModelFailed,
        session_id: str,
        call_id: str,
        *,
        parks: bool,
        probes: bool,
    ) -> Answered | ModelFailed:
        """Learn of a result; return it with what is known of the provider by now.

        The call `parks` after a failure: it is not made again soon.
        """
        if isinstance(result, Answered) or result.kind not in ("transient", "blocked"):
            self._failures.pop(provider.name, None)
            ended_ago = result.ended_ago if isinstance(result, Answered) else 0
            await self._answered(provider, probes=probes, proven=True, ended_ago=ended_ago)
            return result
        # The call was not made, because a breaker stood against it: that tells nothing of the
        # provider.
        if not result.is_asked:
            return result
        is_probe = self._probes.get(provider.name) == (session_id, call_id)
        if is_probe:
            del self._probes[provider.name]
        before = self._failures.get(provider.name, FailuresInARow())
        self._failures[provider.name] = in_a_row = before.with_call(session_id, call_id)
        opens = in_a_row.open_breaker(parks=parks)
        breaker = await self._failed(
            provider, result, in_a_row.count, opens=opens, parks=parks, is_probe=is_probe
        )
        if breaker is None or not (breaker.is_open or parks):
            return result
        pause = max(0, breaker.next_at - self._store.clock.earliest())
        return replace(result, backoff=pause, retry_after=0, is_away=True)

    def hear(self, provider: Provider) -> None:
        """Learn that a provider has begun to answer a probe: others need not wait for its end."""
        heard = self._answered(provider, probes=True, proven=False)
        # A task, since the stream that is being heard must not wait for the store.
        task = asyncio.create_task(heard, name="outlast provider answers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def leave_line(self, provider: Provider) -> None:
        """Let everybody go on who stands in the line of a breaker that is no more."""
        await insist(self._clock, self._store.limit.resize, provider.name, EVERYBODY)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # Changes

    async def _take_probe(self, provider: Provider) -> bool:
        """Let one call ask a provider whose pause is over, though it stands in no line.

        Lanes that go on with another model do not wait for this one: in its line there may be
        no call that would find out that it answers again.
        """
        known, now = await self._read(provider), self._store.clock.earliest()
        if known.breaker is None:
            return True
        if known.breaker.is_paused(now):
            return False
        return await self._write(known, with_probe(known.breaker, now))

    async def _failed(
        self,
        provider: Provider,
        failed: ModelFailed,
        failures: int,
        *,
        opens: bool,
        parks: bool,
        is_probe: bool,
    ) -> Breaker | None:
        """Write a failure down, where others have to know of it."""
        known = await self._read(provider)
        # Another worker may have written the breaker since it was read: then the same is decided of
        # the newer one.
        while True:
            before, now = known.breaker, self._store.clock.latest()
            if before and is_probe:  # the pause that it began itself is over
                before = replace(before, next_at=min(now, before.next_at))
            opens_now = opens and not (before and before.is_open)
            if before and before.is_paused(now) and not opens_now:
                return before  # the call began before the pause: that tells nothing new
            changed = after_failure(before, provider, failed, failures, now, opens=opens)
            if before is None and not (opens or parks):
                return None
            if await self._write(known, changed):
                # An outage that somebody has to mend by now is news.
                if before is None or changed.blocked > before.blocked:
                    warn(changed)
                return changed
            known = await self._read(provider)

    async def _answered(
        self, provider: Provider, *, probes: bool, proven: bool, ended_ago: int = 0
    ) -> None:
        """Let more through where a provider answers again, and all when no call waits any more."""
        name = provider.name
        known = self._known.get(name)
        if known is None or known.breaker is None or not (known.breaker.is_open or probes):
            return  # those in line may have failed by their own fault: they take their turn
        if ended_ago:  # hooks and policies took their time: others may have failed meanwhile
            known = await self._read(provider)
            ended_at = self._store.clock.latest() - ended_ago
            if known.breaker is None or ended_at < known.breaker.failed_at:
                return
        # Hundreds of lanes may be answered at once: one of them counts for all.
        self._proven |= {name} if proven else set()
        is_counting = name in self._answers
        self._answers[name] = self._answers.get(name, 0) + 1
        if is_counting:
            return
        try:
            while answers := self._answers[name]:
                self._answers[name] = 0
                await self._count(provider, answers)
        finally:
            del self._answers[name]

    async def _count(self, provider: Provider, answers: int) -> None:
        proven = provider.name in self._proven
        self._proven.discard(provider.name)
        while before := (known := await self._read(provider)).breaker:
            if not proven and before.is_paused(self._store.clock.earliest()):
                return  # another answer that had begun was cut off: this one may be
            changed = after_answers(before, answers, proven=proven)
            if await self._write(known, changed):
                if changed.group > before.group or changed.is_proven > before.is_proven:
                    await self._widen(changed)
                return

    async def _widen(self, breaker: Breaker) -> None:
        """Wake the next group; with the last one the breaker is no more."""
        name = breaker.provider.name
        resize = self._store.limit.resize
        left = await insist(self._clock, resize, name, breaker.group)
        # Calls wait behind the group, or no answer has come to its end: the breaker stays until
        # both are over.
        if left > breaker.group or not breaker.is_proven:
            return
        # Others may have counted an answer meanwhile. A failure takes precedence.
        while (known := await self._read(breaker.provider)).breaker:
            if known.breaker.state != "recovering":
                return
            if await self._remove(known):
                tell_end(breaker, self._store.clock.latest())
                await self.leave_line(breaker.provider)
                return

    # Documents

    async def _read(self, provider: Provider) -> KnownBreaker:
        read_at = self._clock.monotonic()
        breaker, version = await insist(self._clock, find_breaker, self._store, provider)
        known = KnownBreaker(breaker, version, read_at)
        if breaker is None:
            self._known.pop(provider.name, None)
        else:
            self._known[provider.name] = known
        return known

    async def _write(self, known: KnownBreaker, changed: Breaker) -> bool:
        """Write a breaker in the place of the one that is known, if it still is as it was."""
        version = known.version
        is_written = await insist(self._clock, put_breaker, self._store, changed, version)
        if is_written:
            now = self._clock.monotonic()
            self._known[changed.provider.name] = KnownBreaker(changed, version + 1, now)
        return is_written

    async def _remove(self, known: KnownBreaker) -> bool:
        assert known.breaker is not None
        document = document_of(known.breaker, known.version)
        is_removed = await insist(self._clock, self._store.document.delete, document)
        if is_removed:
            self._known.pop(document.name, None)
        return is_removed


def warn(breaker: Breaker) -> None:
    """Tell the operator what cannot be had and who has to mend it: one worker of the fleet does."""
    provider, error = breaker.provider, breaker.error
    what = "has to be mended by somebody" if breaker.blocked else "is probed until it answers"
    log.warning(
        "%s cannot be had for agent %s and %s; sessions wait meanwhile: %s: %s",
        provider.model,
        provider.agent,
        what,
        error.code,
        visible_line(error.message),
        extra={"provider": provider.name, "agent": provider.agent, "code": error.code},
    )


def tell_end(breaker: Breaker, now: int) -> None:
    provider, minutes = breaker.provider, (now - breaker.since) / MINUTE
    log.info(
        "%s answers agent %s again after %.1f minutes",
        provider.model,
        provider.agent,
        minutes,
        extra={"provider": provider.name, "agent": provider.agent},
    )
