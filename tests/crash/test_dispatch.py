"""The same thing said a hundred times at once is one thing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from crash_gate import Gate
from crash_process import Process, Zygote
from crash_run import Scene


async def result_of(process: Process) -> Counter[str]:
    assert await process.until_exit() == 0, process.said
    return Counter(json.loads(process.said[-1]))


async def test_the_same_dispatch_a_hundred_times_at_once_is_one_delivery_and_one_receipt(
    zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        order = {"gate": gate.path, "message": "Once only", "times": 25}
        processes = [await scene.run("dispatch", **order) for _ in range(4)]
        for process in processes:
            await process.until_said("ready")

        gate.open()
        receipts: Counter[str] = sum([await result_of(p) for p in processes], Counter())

    assert list(receipts.values()) == [100]
    async with scene.open() as app:
        [session] = await app.sessions()
        [found] = await app.sessions(tags={"customer": "42"})
        assert found.session_id == session.session_id
        deliveries = await app.store.listing.deliveries(session.session_id)
        assert next(iter(receipts)).split() == [
            session.session_id,
            *(delivery.delivery_id for delivery in deliveries),
        ]


async def test_other_content_under_the_same_dispatch_id_is_a_conflict_and_writes_nothing(
    zygote: Zygote, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, zygote)
    with Gate(tmp_path / "gate") as gate:
        gate.open()
        order = {"gate": gate.path, "times": 25}
        await result_of(await scene.run("dispatch", message="This", **order))
        async with scene.open() as app:
            before = [(info.session_id, info.end) for info in await app.sessions()]

            others = [await scene.run("dispatch", message="That", **order) for _ in range(2)]
            found: Counter[str] = sum([await result_of(p) for p in others], Counter())

            assert found == {"DISPATCH_CONFLICT": 50}
            assert [(info.session_id, info.end) for info in await app.sessions()] == before
