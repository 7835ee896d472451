"""A session's state from another machine: read, changed and rolled back over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from client_scene import far_away
from http_scene import Caller, Json, scene

from outlast.errors import DispatchConflict, InvalidInput
from outlast.server import ServerSettings
from outlast.state import reducer, slice_type


@slice_type("remote-item")
@dataclass(frozen=True)
class Item:
    id: int
    text: str = ""


@slice_type("remote-visit", kind="log")
@dataclass(frozen=True)
class Visit:
    page: str


@dataclass(frozen=True)
class ItemRenamed:
    id: int
    text: str


@reducer(Item, ItemRenamed)
def rename(items: Sequence[Item], event: ItemRenamed) -> Sequence[Item]:
    return [Item(each.id, event.text) if each.id == event.id else each for each in items]


async def test_state_is_changed_and_read_as_in_the_process_of_the_store() -> None:
    async with far_away() as far:
        session = await far.client.start("teller", "hi")
        await (await session.mutate(Item).seed(Item(1, "tea"), Item(2, "cup"))).result()
        await (await session.mutate(Item).append(Item(3))).result()
        await (await session.mutate().dispatch(ItemRenamed(2, "pot"))).result()
        await (await session.mutate(Visit).append(Visit("front"))).result()

        here = await far.app.session(session.id)
        expected = [Item(1, "tea"), Item(2, "pot"), Item(3)]
        assert await session.query(Item).all() == await here.query(Item).all() == expected
        assert await session.query(Visit).latest() == Visit("front")


async def test_a_session_goes_back_to_a_snapshot_that_was_fetched() -> None:
    async with far_away() as far:
        session = await far.client.start("teller", "hi")
        await (await session.mutate(Item).append(Item(1, "tea"))).result()
        before = await session.snapshot()
        await (await session.mutate(Visit).append(Visit("front"))).result()
        await (await session.mutate().reset()).result()
        assert await session.query(Item).all() == []

        await (await session.mutate().rollback(before)).result()

        assert await session.query(Item).all() == [Item(1, "tea")]
        assert await session.query(Visit).all() == [Visit("front")]  # a log stays


async def test_the_same_change_twice_is_one_and_another_under_its_name_is_refused() -> None:
    async with far_away() as far:
        session = await far.client.start("teller", "hi")
        first = await session.mutate(Item).append(Item(1), dispatch_id="once")
        second = await session.mutate(Item).append(Item(1), dispatch_id="once")
        await second.result()

        assert (first.delivery_id, second.duplicate) == (second.delivery_id, True)
        assert await session.query(Item).all() == [Item(1)]
        with pytest.raises(DispatchConflict):
            await session.mutate(Item).append(Item(2), dispatch_id="once")


BAD = [
    ({"op": "append", "slice": "nothing", "values": [{"value": 1}]}, "there is no slice nothing"),
    ({"op": "append", "slice": "remote-item", "values": [{"value": {"id": "x"}}]}, "Item"),
    (
        {"op": "append", "slice": "remote-item", "values": [{"value": {"id": 1}, "version": 7}]},
        "newer code",
    ),
    ({"op": "append", "slice": "remote-item"}, "append needs values"),
    (
        {"op": "append", "slice": "remote-item", "values": [{"value": {"id": n}} for n in (1, 2)]},
        "append takes one value, not 2",
    ),
    ({"op": "seed", "slice": "remote-visit", "values": []}, "remote-visit is a log"),
    ({"op": "dispatch", "event": "Nope", "values": [{"value": {}}]}, "no slice has a reducer"),
    ({"op": "dispatch", "event": "ItemRenamed", "values": [{"value": {"id": 1}}]}, "ItemRenamed"),
    ({"op": "reset", "slice": "remote-item"}, "reset takes no slice"),
    ({"op": "rollback"}, "rollback needs slices"),
    ({"op": "rollback", "slices": {"outlast:approvals": {"values": []}}}, "Outlast's own"),
]


@pytest.mark.parametrize(("body", "told"), BAD)
async def test_a_change_that_cannot_be_is_told_at_once_and_changes_nothing(
    body: Json, told: str
) -> None:
    async with scene() as bank:
        caller = bank.caller()
        session_id = await started(caller)

        refused = await caller.post(f"/v1/sessions/{session_id}/state", json=body)

        assert (refused.status_code, refused.json()["error"]["code"]) == (422, InvalidInput.code)
        assert told in refused.json()["error"]["message"]
        state = (await caller.get(f"/v1/sessions/{session_id}/state")).json()
        assert state["slices"] == {}


async def test_state_is_read_by_insiders_and_changed_by_admins_of_its_tenant_only() -> None:
    async with scene(ServerSettings(require_key=True)) as bank:
        owner = await bank.keyed()
        session_id = await started(owner)
        path, change = f"/v1/sessions/{session_id}/state", {"op": "reset"}

        told: list[Any] = []
        for scopes, tenant in ((("read", "send"), "default"), (("internals", "admin"), "other")):
            caller = await bank.keyed(*scopes, tenant=tenant)
            told.append((await caller.get(path)).status_code)
            told.append((await caller.post(path, json=change)).status_code)

        assert told == [403, 403, 404, 404]
        assert (await owner.post(path, json=change)).status_code == 202


async def started(caller: Caller) -> str:
    begun = await caller.post("/v1/sessions", json={"agent": "teller", "message": "hi"})
    return str(begun.json()["session_id"])
