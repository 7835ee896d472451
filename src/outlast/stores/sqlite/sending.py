"""What commits send: arrivals at other sessions, in the same transaction.

They come after all that their group has written, so they see it: a lane that was just parked
is made ready again, and one whose session has just ended takes nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.core.codec import encode
from outlast.errors import OutlastError
from outlast.store import Admission
from outlast.store.admission import is_named
from outlast.stores.sqlite.admission import write_admission
from outlast.stores.sqlite.unit_of_work import UnitOfWork


def send(desk: UnitOfWork, letters: Iterable[Admission]) -> None:
    """Admit each; one that cannot be is dropped, and has changed nothing."""
    for letter in letters:
        try:
            body = encode(letter.records)
        except OutlastError:
            continue
        if not has_used_id(desk, letter):
            write_admission(desk, letter, body)


def has_used_id(desk: UnitOfWork, letter: Admission) -> bool:
    """Whether its delivery is there under another name: writing it would fail for all."""
    key = {"delivery_id": letter.delivery_id}
    return is_named(letter) and desk.db.one("receipt_by_delivery", key) is not None
