"""What a commit sends: admissions that go out with it and are done in its transaction.

Whoever cannot be reached is not told; the rest is in functions/send.sql.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlast.core.codec import Packer
from outlast.errors import NotEncodable
from outlast.store import Admission
from outlast.stores.postgres.admission import AdmissionItem, AdmissionJson
from outlast.stores.postgres.writer import GroupBuffer, Hints


class SendsJson:
    """The letters of one commit. Which of them were dropped is not asked for."""

    def __init__(self, sends: Sequence[Admission], packer: Packer) -> None:
        self._entries = list(entries_of(sends, packer))
        self.size = sum(entry.size for entry in self._entries)

    def prepare(self, buffer: GroupBuffer) -> list[AdmissionJson]:
        return [entry.prepare(buffer) for entry in self._entries]

    def make_out(self, turns: Sequence[tuple[int, str]]) -> None:
        """Give cancels that name no turn, by their places, those that are open."""
        for place, turn in turns:
            self._entries[place].make_out_to(turn)

    @property
    def hints(self) -> Hints:
        """Who is to be told that something has arrived."""
        return {entry.session_id: True for entry in self._entries}


def entries_of(sends: Sequence[Admission], packer: Packer) -> Iterator[AdmissionItem]:
    """Yield each as it goes out; what cannot be stored is dropped."""
    for admission in sends:
        try:
            yield AdmissionItem(admission, packer)
        except NotEncodable:
            continue
