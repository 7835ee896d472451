"""Places at receivers: who is visited, who waits, and who is sent away."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.integration.outbox.receiver_limit import LONGEST_WAIT, STUCK, ReceiverLimits
from outlast.store import OutboxCursor
from outlast.testing.clock import ManualClock


def cursor(number: int) -> OutboxCursor:
    return OutboxCursor(
        session_id=f"ses_{number}", tenant="t", agent="a", name="webhook", url="", events=()
    )


class Scene:
    """A lobby with two places at each receiver, and who got one."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.begun: list[tuple[str, str]] = []
        self.lobby = ReceiverLimits(2, self._begin, self.clock)

    def _begin(self, cursor: OutboxCursor, receiver: str) -> None:
        self.begun.append((cursor.session_id, receiver))

    def come(self, *numbers: int, to: str = "slow") -> list[bool]:
        return [self.lobby.let_in(cursor(number), to) for number in numbers]

    def wait(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))

    def sent_away(self) -> list[str]:
        return [each.session_id for each in self.lobby.send_away()]


def test_each_receiver_has_places_of_its_own() -> None:
    scene = Scene()
    scene.come(1, 2, 3)
    scene.come(4, to="quick")
    assert scene.begun == [("ses_1", "slow"), ("ses_2", "slow"), ("ses_4", "quick")]
    assert scene.lobby.waiting == 1


def test_who_waits_gets_a_place_in_the_order_of_the_line() -> None:
    scene = Scene()
    scene.come(1, 2, 3, 4)
    scene.lobby.leave("slow")
    scene.lobby.leave("slow")
    assert [session for session, _ in scene.begun] == ["ses_1", "ses_2", "ses_3", "ses_4"]
    scene.come(5)
    assert scene.lobby.waiting == 1


def test_a_line_that_does_not_move_is_sent_away_and_takes_nobody_in() -> None:
    scene = Scene()
    scene.come(1, 2, 3, 4)
    assert scene.sent_away() == []
    scene.wait(STUCK + 0.1)
    assert scene.sent_away() == ["ses_3", "ses_4"]
    assert scene.come(5) == [False]
    assert scene.come(6, 7, 8, to="quick") == [True, True, True]
    scene.lobby.leave("slow")
    assert scene.come(9, 10) == [True, True]


def test_a_line_that_moves_slowly_keeps_nobody_for_long() -> None:
    scene = Scene()
    scene.come(1, 2, *range(10, 20))
    for _ in range(6):
        scene.wait(0.9)
        scene.lobby.leave("slow")
        away = scene.sent_away()
    assert LONGEST_WAIT < 6 * 0.9
    assert away == [f"ses_{number}" for number in range(16, 20)]
    assert scene.lobby.waiting == 0


def test_when_all_is_over_everybody_leaves() -> None:
    scene = Scene()
    scene.come(1, 2, 3)
    assert [each.session_id for each in scene.lobby.clear()] == ["ses_3"]
    scene.lobby.leave("slow")
    scene.lobby.leave("slow")
    assert len(scene.begun) == 2
    assert scene.come(4) == [True]


def test_an_outbox_cursor_shows_itself_without_its_secret() -> None:
    told = replace(cursor(1), url="https://shop.example/hook", secret="s3cret")

    assert "url='https://shop.example/hook'" in repr(told)
    assert "s3cret" not in repr(told)
    assert dict(told.__rich_repr__())["name"] == told.name
