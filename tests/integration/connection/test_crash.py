"""A sign-in and crashes: of the worker at every commit, and of whoever takes somebody in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from oauth_provider import Remote, provider_process
from scene import DAY, results_of, running, the
from sign_in_scene import Hub, sign_in, visit

from outlast import Context, Outlast, tool
from outlast.errors import OutlastError, StoreUnavailable
from outlast.integration.connection.token_store import GRANT
from outlast.store import Admission, AdmissionReceipt, Document
from outlast.stores.sqlite import MemoryStore
from outlast.testing import Ledger, crash_everywhere
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import call, say
from outlast.testing.wrapped_store import WrappedStore

ADA: dict[str, Any] = {"principal": "ada"}


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with provider_process() as found:
        yield found


async def test_a_crash_at_any_commit_repeats_neither_a_sign_in_nor_a_model_call(
    remote: Remote,
) -> None:
    hub, ledger = Hub(remote), Ledger()

    @tool(on_interrupt="rerun")
    async def publish(ctx: Context) -> str:
        await ctx.step(ledger.record, "draft", name="draft")
        token = await ctx.require_auth("hub")
        ledger.record("publish", idempotency_key=ctx.idempotency_key)
        return str(await remote.user(token))

    async def scenario(app: Outlast) -> list[Any]:
        session = await app.start("a", "go", **ADA)
        back = await visit(hub, session)
        endings = [await app.connections.complete("hub", **back) for _ in range(2)]
        result = await session.wait()
        kinds = ("authorization.required", "message.completed")
        counts = [len(await the(session, kind)) for kind in kinds]
        return [endings, result.output, await results_of(session), counts]

    agent = hub.agent(call("publish"), say("done"), tools=[publish])
    report = await crash_everywhere(
        scenario, agents=[agent], ledger=ledger, store=MemoryStore, **hub.app
    )

    assert report.undisturbed.output == [["completed", "used"], "done", ["200"], [1, 2]]
    assert len(report.runs) > 10
    for run in report.runs:
        assert run.output == report.undisturbed.output, run
        assert not run.unsettled, run
        assert [effect.what for effect in run.effects].count("publish()") == 1, run


class Cut(WrappedStore):
    """A store that is cut off once, before or after it has done something."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.at = ("", "")

    async def _do(self, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        if self.at == (what, "before"):
            raise self._cut()
        result = await work()
        if self.at == (what, "after"):
            raise self._cut()
        return result

    def _cut(self) -> StoreUnavailable:
        self.at = ("", "")
        return StoreUnavailable("cut off")

    async def put(
        self, document: Document, *, expected: int | None, lifetime: int | None = None
    ) -> bool:
        what = "keep" if document.kind == GRANT else ""
        written: bool = await self._do(
            what,
            lambda: self.inner.document.put(document, expected=expected, lifetime=lifetime),
        )
        return written

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        found: Sequence[AdmissionReceipt | OutlastError] = await self._do(
            "admit", lambda: self.inner.log.admit(admissions)
        )
        return found


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["keep", "admit"])
async def test_who_was_cut_off_on_the_way_in_comes_again_and_is_taken_in(
    remote: Remote, what: str, when: str
) -> None:
    hub, store = Hub(remote), Cut(MemoryStore())
    async with running(hub.agent(), store=store, **hub.app) as app:
        session = await app.start("a", "go", **ADA)
        back = await visit(hub, session)
        exchanges = await remote.calls("token")
        store.at = (what, when)
        with pytest.raises(StoreUnavailable):
            await app.connections.complete("hub", **back)

        again = await app.connections.complete("hub", **back)

        # A code is good once: if what it gave was not kept, the link has to be opened again.
        is_lost = (what, when) == ("keep", "before")
        landed = (what, when) == ("admit", "after")
        assert again == ("again" if is_lost else "used" if landed else "completed")
        assert await remote.calls("token") == exchanges + 1 + is_lost
        if is_lost:
            assert await sign_in(app, hub, session) == "completed"
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["status 200"]
        assert hub.asked == 2


async def test_who_comes_back_while_no_worker_lives_is_taken_in(remote: Remote) -> None:
    hub, store = Hub(remote), MemoryStore()
    async with running(hub.agent(), store=store, **hub.app) as app:
        session_id = (session := await app.start("a", "go", **ADA)).id
        back = await visit(hub, session)
    async with Outlast([hub.agent()], store=store, worker=None, **hub.app) as app:
        assert await app.connections.complete("hub", **back) == "completed"
        assert await app.connections.complete("hub", **back) == "used"
    async with running(hub.agent(), store=store, **hub.app) as app:
        session = await app.session(session_id)
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["status 200"]
        assert hub.asked == 2


async def test_who_comes_back_too_late_is_told_so_even_if_nobody_has_noticed_yet(
    remote: Remote,
) -> None:
    hub, clock = Hub(remote), ManualClock()
    kept = {"store": MemoryStore(clock), "clock": clock, **hub.app}
    async with running(hub.agent(), **kept) as app:
        back = await visit(hub, await app.start("a", "go", **ADA))
    clock.advance(DAY)
    exchanges = await remote.calls("token")
    async with Outlast([hub.agent()], worker=None, **kept) as app:
        assert await app.connections.complete("hub", **back) == "expired"
    assert await remote.calls("token") == exchanges
