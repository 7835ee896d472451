"""What a conversation takes on disk: hardly more than its words."""

from __future__ import annotations

import random
from pathlib import Path

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.message import Text
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    claim_one,
    commit,
    enlist,
    message,
    new_session,
    park,
    settled,
    turn_started,
    write,
)

TURNS = 200
SIZE = 2048


def incompressible(chance: random.Random) -> str:
    """Every character is as likely as any other: seven bits of each byte are news."""
    return "".join(chance.choices([chr(code) for code in range(128)], k=SIZE))


async def test_a_conversation_takes_at_most_half_more_than_its_words(tmp_path: Path) -> None:
    chance, clock = random.Random(1), ManualClock(seed=1)
    path = tmp_path / "outlast.db"
    store = SqliteStore(path, clock)
    await store.migrate()
    await enlist(store, clock)
    session = ""
    for number in range(1, TURNS + 1):
        turn, said = f"t{number}", incompressible(chance)
        arrival = message(clock, session, said) if session else new_session(clock, said)
        arrival = replace(arrival, dispatch_id=arrival.delivery_id)
        session = (await admit(store, arrival)).session_id
        claim = await claim_one(store)
        await write(store, commit(claim, turn_started(arrival.delivery_id, turn)))
        answer = r.MessageCompleted(
            call_id=f"{turn}.s1", attempt=1, parts=(Text(incompressible(chance)),)
        )
        done = settled(arrival.delivery_id, turn)
        await write(store, park(claim, answer, done, number=claim.number + 1))
    await store.close()
    assert size_of(path) <= 1.5 * TURNS * 2 * SIZE


def size_of(path: Path) -> int:
    return path.stat().st_size
