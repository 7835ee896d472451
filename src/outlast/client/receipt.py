"""The receipt of what was sent over the wire, which leads to a session there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from typing_extensions import TypeVar

from outlast.client.decode import WireReceipt
from outlast.session import Receipt, Session
from outlast.store import AdmissionReceipt as StoreReceipt

if TYPE_CHECKING:
    from outlast.client.session import RemoteSession

Out = TypeVar("Out", default=Any)


class RemoteReceipt(Receipt[Out]):
    """Proof that a message was accepted, and the way to its answer."""

    session: RemoteSession[Out]  # type: ignore[assignment] # asked for a result only

    def __init__(self, session: RemoteSession[Out], given: WireReceipt, *, is_ours: bool) -> None:
        """With `is_ours` the dispatch's id was made here: a duplicate is our own second try."""
        receipt = StoreReceipt(
            session_id=given.session_id,
            lane=given.lane,
            delivery_id=given.delivery_id,
            offset=given.offset,
            position=given.position,
            duplicate=given.duplicate and not is_ours,
        )
        super().__init__(cast("Session[Out]", session), receipt)
