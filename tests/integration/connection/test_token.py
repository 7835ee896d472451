"""Tokens once they are there: kept alive, kept apart, kept secret, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from oauth_provider import Remote, provider_process
from scene import PATIENT, results_of, running, the, until
from sign_in_scene import KEY, Hub, required, sign_in

from outlast import Outlast, OutlastError, Session
from outlast.errors import StoreUnavailable
from outlast.integration.connection.single_flight import HOLD
from outlast.integration.connection.token_store import GRANT
from outlast.store import Document
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.wrapped_store import WrappedStore

HOUR = 3_600_000
ADA: dict[str, Any] = {"principal": "ada"}


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with provider_process() as found:
        yield found


@pytest.fixture
def hub(remote: Remote) -> Hub:
    return Hub(remote)


async def looked(app: Outlast, **whose: Any) -> Session[Any]:
    """Have the tool look once."""
    session = await app.start("a", "go", **{**ADA, **whose})
    await session.wait()
    return session


class Meddled(WrappedStore):
    """A store where something happens when a secret is to be kept, once."""

    before: Callable[[], Awaitable[object]] | None = None

    async def put(
        self, document: Document, *, expected: int | None, lifetime: int | None = None
    ) -> bool:
        if document.kind == GRANT and self.before:
            before, self.before = self.before, None
            await before()
        return await super().put(document, expected=expected, lifetime=lifetime)


@asynccontextmanager
async def signed_in(hub: Hub) -> AsyncIterator[tuple[Outlast, ManualClock]]:
    """An app where Ada has signed in, and whose time stands still."""
    clock = ManualClock()
    options = {**hub.app, "store": Meddled(MemoryStore(clock)), "clock": clock}
    async with running(hub.agent(), settings=PATIENT, **options) as app:
        await sign_in(app, hub, session := await app.start("a", "go", **ADA))
        await session.wait()
        yield app, clock


def before_keeping(app: Outlast, do: Callable[[], Awaitable[object]]) -> None:
    assert isinstance(app.store, Meddled)
    app.store.before = do


# Refreshing


async def test_a_token_whose_time_is_over_is_replaced_and_so_is_the_one_after(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        for _ in range(3):
            clock.advance(HOUR)
            session = await looked(app)
            assert await the(session, "authorization.required") == []
            assert await results_of(session) == ["status 200"]

        assert len(set(hub.tokens)) == 4


async def test_a_provider_that_gives_no_new_refresh_token_is_asked_with_the_old_one(
    hub: Hub,
) -> None:
    await hub.remote.say(rotates=False)
    try:
        async with signed_in(hub) as (app, clock):
            for _ in range(2):
                clock.advance(HOUR)
                assert await results_of(await looked(app)) == ["status 200"]
    finally:
        await hub.remote.say(rotates=True)


async def test_a_token_is_replaced_a_little_before_its_end(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        clock.advance(HOUR - 61_000)
        await looked(app)
        assert len(set(hub.tokens)) == 1

        clock.advance(2_000)
        await looked(app)
        assert len(set(hub.tokens)) == 2


async def test_a_token_that_lives_for_seconds_is_not_replaced_at_each_use(hub: Hub) -> None:
    await hub.remote.say(expires_in=20)
    try:
        async with signed_in(hub) as (app, clock):
            clock.advance(14_000)
            await looked(app)
            assert len(set(hub.tokens)) == 1
            clock.advance(2_000)
            await looked(app)
            assert len(set(hub.tokens)) == 2
    finally:
        await hub.remote.say(expires_in=3600)


async def test_a_token_is_replaced_once_however_many_need_it_wherever_they_run(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        options = {**hub.app, "store": app.store, "clock": clock}
        async with running(hub.agent(), settings=PATIENT, **options) as other:
            clock.advance(HOUR)
            exchanges = await hub.remote.calls("token")
            opened = [each._connections for each in (app, other)]
            account = opened[0].account("hub", "default", "ada")  # type: ignore[union-attr]

            found = await asyncio.gather(
                *(each.live(account) for each in opened for _ in range(10))  # type: ignore[union-attr]
            )

            assert len({grant.access_token for grant in found if grant}) == 1
            assert None not in found
            assert await hub.remote.calls("token") == exchanges + 1


async def test_a_grant_that_was_taken_back_needs_another_sign_in(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        [token] = set(hub.tokens)
        await hub.remote.say(refresh={}, access={})
        clock.advance(HOUR)

        session = await app.start("a", "go", **ADA)
        assert (await session.wait()).status == "waiting"
        exchanges = await hub.remote.calls("token")
        assert (await (await app.start("a", "go", **ADA)).wait()).status == "waiting"
        assert await hub.remote.calls("token") == exchanges  # that is known by now
        assert await sign_in(app, hub, session) == "completed"

        assert (await session.wait()).output == "done"
        assert hub.tokens[-1] != token


async def test_while_a_provider_is_away_a_token_is_used_as_long_as_it_lives(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        clock.advance(HOUR - 30_000)
        await hub.remote.say(error="503")
        assert await results_of(await looked(app)) == ["status 200"]

        clock.advance(60_000)
        await hub.remote.say(error="503")
        [told] = await results_of(await looked(app))
        assert "the provider answered with status 503" in told

        assert await results_of(await looked(app)) == ["status 200"]
        assert len(set(hub.tokens)) == 2


async def test_a_provider_that_does_not_know_the_app_is_named_to_the_model(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        clock.advance(HOUR)
        await hub.remote.say(error="invalid_client")

        [told] = await results_of(await looked(app))
        assert told == "PROVIDER_REFUSED: ProviderRefused: the provider refused: invalid_client"


async def test_what_a_cancelled_tool_had_refreshed_is_kept(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        clock.advance(HOUR)
        began, go_on = asyncio.Event(), asyncio.Event()

        async def linger() -> None:
            began.set()
            await go_on.wait()

        before_keeping(app, linger)
        session = await app.start("a", "go", **ADA)
        await began.wait()
        await session.cancel()
        await until(session, "turn.cancelled")
        go_on.set()

        exchanges = await hub.remote.calls("token")
        assert await results_of(await looked(app)) == ["status 200"]
        assert await hub.remote.calls("token") == exchanges


async def test_a_new_pair_that_was_lost_costs_a_sign_in_and_nothing_else(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        clock.advance(HOUR)

        async def go_away() -> None:
            raise StoreUnavailable("gone")

        before_keeping(app, go_away)
        [told] = await results_of(await looked(app))
        assert told.startswith("STORE_UNAVAILABLE")

        # The provider has taken the old refresh token for the last time.
        session = await app.start("a", "go", **ADA)
        assert (await session.wait()).status == "waiting"
        assert await sign_in(app, hub, session) == "completed"
        await session.wait()
        assert await results_of(session) == ["status 200"]


async def test_a_hold_of_a_dead_worker_runs_out(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        clock.advance(HOUR)
        name = "refresh/default/connection/hub/user/ada"
        dead = Document(kind=HOLD, tenant="", name=name, version=1, data=b"the dead")
        assert await app.store.document.put(dead, expected=None, lifetime=20_000)
        session = await app.start("a", "go", **ADA)
        await until(session, "tool.started")
        clock.advance(20_000)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["status 200"]


# Another one


async def test_a_token_that_a_service_refuses_is_replaced_by_another(hub: Hub) -> None:
    async with signed_in(hub) as (app, _):
        hub.wish = {"instead_of": hub.tokens[-1]}

        assert await results_of(await looked(app)) == ["status 200"]
        assert len(set(hub.tokens)) == 2
        exchanges = await hub.remote.calls("token")
        await looked(app)
        assert await hub.remote.calls("token") == exchanges  # it is another one already


async def test_who_has_no_other_token_signs_in_again(hub: Hub) -> None:
    async with signed_in(hub) as (app, _):
        hub.wish = {"instead_of": hub.tokens[-1]}
        await hub.remote.say(refresh={})

        session = await app.start("a", "go", **ADA)
        await sign_in(app, hub, session)

        assert (await session.wait()).output == "done"
        assert hub.tokens[-1] != hub.wish["instead_of"]


# Giving it back


async def test_who_signs_out_is_known_no_more_here_or_there(hub: Hub) -> None:
    async with signed_in(hub) as (app, _):
        assert await hub.remote.user(hub.tokens[-1]) == 200

        assert await app.connections.sign_out("hub", **ADA)

        assert await hub.remote.user(hub.tokens[-1]) == 401
        assert not await app.connections.sign_out("hub", **ADA)
        session = await app.start("a", "go", **ADA)
        await sign_in(app, hub, session)
        assert (await session.wait()).output == "done"


async def test_a_provider_that_cannot_be_told_leaves_all_as_it_is(remote: Remote) -> None:
    hub = Hub(remote, revoke_url="http://127.0.0.1:9/revoke")
    async with signed_in(hub) as (app, _):
        with pytest.raises(OutlastError) as failed:
            await app.connections.sign_out("hub", **ADA)
        assert failed.value.code == "UNREACHABLE"
        assert await results_of(await looked(app)) == ["status 200"]

        assert await app.connections.sign_out("hub", **ADA, revoke=False)
        assert (await (await app.start("a", "go", **ADA)).wait()).status == "waiting"


async def test_a_refresh_does_not_bring_back_who_has_signed_out_meanwhile(hub: Hub) -> None:
    async with signed_in(hub) as (app, clock):
        clock.advance(HOUR)
        before_keeping(app, lambda: app.connections.sign_out("hub", **ADA, revoke=False))
        session = await app.start("a", "go", **ADA)

        assert (await session.wait()).status == "waiting"


# The key


async def test_an_old_key_still_opens_what_it_has_sealed(hub: Hub) -> None:
    other = "another key, made when the first was old"
    store = MemoryStore()
    async with running(hub.agent(), **hub.app, store=store) as app:
        await sign_in(app, hub, session := await app.start("a", "go", **ADA))
        await session.wait()

    rotated = hub.app_with([other, KEY])
    async with running(hub.agent(), **rotated, store=store) as app:
        assert await results_of(await looked(app)) == ["status 200"]


async def test_without_the_old_key_somebody_has_to_sign_in_again(hub: Hub) -> None:
    other = "another key, made when the first was lost"
    store = MemoryStore()
    async with running(hub.agent(), **hub.app, store=store) as app:
        await sign_in(app, hub, session := await app.start("a", "go", **ADA))
        await session.wait()
        waiting = await app.start("a", "go", principal="bob")
        back = (await required(waiting)).data["url"]

    async with running(hub.agent(), **hub.app_with(other), store=store) as app:
        session = await app.start("a", "go", **ADA)
        assert await sign_in(app, hub, session) == "completed"
        assert (await session.wait()).output == "done"

        # What was under way cannot be completed, and says so.
        state = dict(pair.split("=") for pair in back.partition("?")[2].split("&"))["state"]
        brought = {"state": state, "code": "x", "iss": hub.connection.issuer}
        assert await app.connections.complete("hub", **brought) == "failed"


async def test_what_is_sealed_for_one_is_no_use_to_another(hub: Hub) -> None:
    async with signed_in(hub) as (app, _):
        ada = await app.store.document.get(GRANT, "default", "connection/hub/user/ada")
        assert ada is not None
        stolen = replace(ada, name="connection/hub/user/eve")
        assert await app.store.document.put(stolen, expected=None)

        [told] = await results_of(await looked(app, principal="eve"))
        assert told.startswith("STORE_CORRUPT")
