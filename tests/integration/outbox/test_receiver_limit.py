"""Limits for each receiver: which cursors get a slot, which wait, which are handed back."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.integration.outbox.receiver_limit import LONGEST_WAIT, STALLED, ReceiverLimits
from outlast.store import OutboxCursor
from outlast.testing.clock import ManualClock


def cursor(number: int) -> OutboxCursor:
    return OutboxCursor(
        session_id=f"ses_{number}", tenant="t", agent="a", name="webhook", url="", events=()
    )


class Scene:
    """Limits of two slots for each receiver, and the cursors that got one."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.begun: list[tuple[str, str]] = []
        self.limits = ReceiverLimits(2, self._begin, self.clock)

    def _begin(self, cursor: OutboxCursor, receiver: str) -> None:
        self.begun.append((cursor.session_id, receiver))

    def add(self, *numbers: int, to: str = "slow") -> list[bool]:
        return [self.limits.add(cursor(number), to) for number in numbers]

    def wait(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))

    def stalled(self) -> list[str]:
        return [each.session_id for each in self.limits.take_stalled()]


def test_each_receiver_has_slots_of_its_own() -> None:
    scene = Scene()
    scene.add(1, 2, 3)
    scene.add(4, to="quick")
    assert scene.begun == [("ses_1", "slow"), ("ses_2", "slow"), ("ses_4", "quick")]
    assert scene.limits.waiting == 1


def test_waiting_cursors_get_slots_in_the_order_of_the_queue() -> None:
    scene = Scene()
    scene.add(1, 2, 3, 4)
    scene.limits.release("slow")
    scene.limits.release("slow")
    assert [session for session, _ in scene.begun] == ["ses_1", "ses_2", "ses_3", "ses_4"]
    scene.add(5)
    assert scene.limits.waiting == 1


def test_a_stalled_queue_is_handed_back_and_takes_no_more() -> None:
    scene = Scene()
    scene.add(1, 2, 3, 4)
    assert scene.stalled() == []
    scene.wait(STALLED + 0.1)
    assert scene.stalled() == ["ses_3", "ses_4"]
    assert scene.add(5) == [False]
    assert scene.add(6, 7, 8, to="quick") == [True, True, True]
    scene.limits.release("slow")
    assert scene.add(9, 10) == [True, True]


def test_a_queue_that_moves_slowly_keeps_no_cursor_for_long() -> None:
    scene = Scene()
    scene.add(1, 2, *range(10, 20))
    stalled: list[str] = []
    for _ in range(6):
        scene.wait(0.9)
        scene.limits.release("slow")
        stalled = scene.stalled()
    assert LONGEST_WAIT < 6 * 0.9
    assert stalled == [f"ses_{number}" for number in range(16, 20)]
    assert scene.limits.waiting == 0


def test_all_queues_can_be_emptied_at_once() -> None:
    scene = Scene()
    scene.add(1, 2, 3)
    assert [each.session_id for each in scene.limits.take_all()] == ["ses_3"]
    scene.limits.release("slow")
    scene.limits.release("slow")
    assert len(scene.begun) == 2
    assert scene.add(4) == [True]


def test_an_outbox_cursor_shows_itself_without_its_secret() -> None:
    told = replace(cursor(1), url="https://shop.example/hook", secret="s3cret")

    assert "url='https://shop.example/hook'" in repr(told)
    assert "s3cret" not in repr(told)
    assert dict(told.__rich_repr__())["name"] == told.name
