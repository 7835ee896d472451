"""What a remote agent asks people, asked where its caller is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_scene import FAST
from oauth_provider import Remote, brought, provider_process
from remote_scene import boss, output_of, peer_app, the, told, two_apps, until
from sign_in_scene import Hub, required, visit

from outlast import Outlast, Session
from outlast.log.verify import verify


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with provider_process() as found:
        yield found


async def results_in(session: Session[Any]) -> list[Any]:
    return [event.data["value"] for event in await the(session, "tool.completed")]


async def test_an_approval_there_is_an_approval_here_with_the_way_to_it() -> None:
    async with two_apps("refund", poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        [request] = (await session.wait()).requests
        child = await pair.child()
        [origin] = await child.requests()

        assert (request.kind, request.tool, request.path) == ("approval", "refund", (child.id,))
        assert request.args == {"order": 17, "cents": 500}
        assert request.digest == origin.digest
        assert request.agent == "teller@teller"
        assert [each.request_id for each in await pair.near.requests()] == [request.request_id]


@pytest.mark.parametrize("args", [None, {"order": 17, "cents": 3}])
async def test_both_logs_say_which_arguments_were_approved_and_the_one_here_by_whom(
    args: dict[str, int] | None,
) -> None:
    async with two_apps("refund", poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "approve", args=args, principal="ada")
        assert await output_of(session) == "done"

        [here] = await the(session, "request.resolved")
        [there] = await the(await pair.child(), "request.resolved")
        assert here.data["principal"] == "ada"
        assert here.data["digest"] == there.data["digest"]
        assert (here.data["digest"] == request.digest) == (args is None)


async def test_arguments_that_are_edited_here_are_those_that_run_there() -> None:
    async with two_apps("refund", poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "approve", args={"order": 17, "cents": 3})

        assert await output_of(session) == "done"
        assert await results_in(await pair.child()) == ["gave back 3 for 17"]
        assert not await verify(pair.near.store, session.id)


async def test_an_answer_that_is_refused_there_is_asked_for_again() -> None:
    async with two_apps("refund", poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "approve", args={"order": "none", "cents": 3})
        async for event in session.events():
            if event.type == "request.opened" and "refused" in event.data["prompt"]:
                break
        [again] = (await session.wait()).requests
        assert again.request_id != request.request_id
        await session.answer(again.request_id, "deny", text="leave it")

        assert await output_of(session) == "done"
        assert not await results_in(await pair.child())
        assert not await verify(pair.near.store, session.id)


async def test_several_questions_are_asked_at_once_and_answered_in_any_order() -> None:
    async with two_apps("two", poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        first, second = await both(session)
        await session.answer(second.request_id, "approve")
        await session.answer(first.request_id, "deny")

        assert await output_of(session) == "done"
        assert await results_in(await pair.child()) == ["gave back 500 for 2"]


async def both(session: Session[Any]) -> Any:
    asked = 0
    async for event in session.events():
        asked += event.type == "request.opened"
        if asked == 2:
            break
    return sorted(await session.requests(), key=lambda request: request.args["order"])


async def test_what_is_answered_there_is_asked_here_no_longer() -> None:
    async with two_apps("refund", poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        await session.wait()
        child = await pair.child()
        [origin] = await child.requests()
        await child.answer(origin.request_id, "approve")

        resolved = await until(pair.near, session, "request.resolved")
        assert resolved.data["how"] == "superseded"
        await until(pair.near, session, "turn.completed")
        assert await output_of(session) == "done"
        assert not await verify(pair.near.store, session.id)


async def test_a_sign_in_there_is_shown_here_until_it_is_done(remote: Remote) -> None:
    hub = Hub(remote)
    agent = hub.agent(name="teller")
    async with two_apps("go", asked=agent, there=hub.app, poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        asked = await required(session)
        child = await pair.child()
        there = await required(child)
        assert asked.data["url"] == there.data["url"]
        assert asked.data["path"] == (child.id,)
        assert asked.data["connection"] == "hub"
        assert (await session.wait()).status == "waiting"

        back = brought(await remote.visit(asked.data["url"], ""))
        assert await pair.peer.connections.complete("hub", **back) == "completed"
        done = await until(pair.near, session, "authorization.completed")
        assert done.data["request_id"] == asked.data["request_id"]
        await until(pair.near, session, "turn.completed")
        assert await output_of(session) == "done"
        assert await told(session) == ["done"]
        assert not await verify(pair.near.store, session.id)


async def test_a_sign_in_here_says_nothing_of_one_there(remote: Remote, tmp_path: Path) -> None:
    there, here = Hub(remote, owner="app"), Hub(remote, owner="app")
    store = f"sqlite:///{tmp_path / 'near.db'}"
    async with peer_app(there.agent(name="teller"), **there.app) as (_, url, token):
        agents = [boss(url, "go", token=token), here.agent(name="local")]
        async with Outlast(agents, store=store, worker=FAST, **here.app) as near:
            session = await near.start("boss", "go")
            asked = await required(session)
            back = await visit(here, await near.start("local", "go"))
            assert await near.connections.complete("hub", **back) == "completed"
        # By the time that the app is closed, all who wait for it were told.
        async with Outlast(store=store, worker=None) as closed:
            [left] = await closed.store.listing.requests(session.id, kinds=("authorization",))
            assert left.request_id == asked.data["request_id"]


async def test_a_sign_in_that_is_denied_there_fails_here(remote: Remote) -> None:
    hub = Hub(remote)
    agent = hub.agent(name="teller")
    async with two_apps("go", asked=agent, there=hub.app, poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        asked = await required(session)
        back = brought(await remote.visit(asked.data["url"], "access_denied"))
        back.pop("error_description", None)
        assert await pair.peer.connections.complete("hub", **back) == "denied"
        failed = await until(pair.near, session, "authorization.failed")
        assert failed.data.get("how", "denied") == "denied"
        await until(pair.near, session, "turn.completed")
        assert await output_of(session) == "done"
