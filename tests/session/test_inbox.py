"""What makes the same thing that is sent again the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import Struct

from outlast import Agent, Outlast, Token
from outlast.core.message import Image, Text
from outlast.core.record import SessionStarted
from outlast.errors import NotEncodable, OutlastError
from outlast.session.inbox import fingerprint_of
from outlast.store import Admission, AdmissionReceipt
from outlast.stores.sqlite.memory import MemoryStore
from outlast.testing import ScriptedModel
from outlast.testing.wrapped_store import WrappedStore


class Before(Struct, frozen=True, tag="fact"):
    """A record as it was."""

    agent: str
    tenant: str = "default"


class After(Struct, frozen=True, tag="fact"):
    """The same record when it has more to say."""

    agent: str
    priority: int = 0
    tenant: str = "default"
    labels: tuple[str, ...] = ()


def test_the_same_said_by_newer_code_is_the_same() -> None:
    assert fingerprint_of(Before("a")) == fingerprint_of(After("a"))
    assert fingerprint_of(Before("a", tenant="t")) == fingerprint_of(After("a", tenant="t"))
    assert fingerprint_of((Before("a"),), "main") == fingerprint_of((After("a"),), "main")


def test_what_is_new_counts_where_it_is_said() -> None:
    assert fingerprint_of(After("a")) != fingerprint_of(After("a", priority=1))
    assert fingerprint_of(After("a")) != fingerprint_of(After("a", labels=("x",)))


def test_a_default_that_somebody_spelled_out_is_the_same() -> None:
    spelled = "".join(["def", "ault"])
    assert fingerprint_of(SessionStarted(agent="a")) == fingerprint_of(
        SessionStarted(agent="a", tenant=spelled)
    )


def test_other_content_is_other() -> None:
    said = [
        (Text("hi"),),
        (Text("hi"), Text("hi")),
        (Text("hihi"),),
        (Image(b"hi"),),
        (Image(url="hi"),),
        ("hi",),
    ]
    assert len({fingerprint_of(content) for content in said}) == len(said)


def test_what_cannot_be_stored_has_none() -> None:
    with pytest.raises(NotEncodable):
        fingerprint_of((Text("\ud800"),))


class AdmissionLog(WrappedStore):
    """A store that keeps what was admitted."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.admitted: list[Admission] = []

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        self.admitted += admissions
        return await super().admit(admissions)


@pytest.mark.parametrize("ids", [(None, None, None), ("d1", "d2", "d3")])
async def test_only_what_can_be_sent_again_is_encoded_to_be_compared(
    ids: Sequence[str | None],
) -> None:
    store = AdmissionLog()
    agent = Agent("a", model=ScriptedModel([]))
    async with Outlast([agent], store=store, worker=None) as app:
        session = await app.start(agent, "hi", dispatch_id=ids[0])
        await session.send("more", dispatch_id=ids[1])
        await app.send(Token(await session.continuation_token()), "and more", dispatch_id=ids[2])

    compared = [bool(admission.fingerprint) for admission in store.admitted]
    assert compared == [each is not None for each in ids]
