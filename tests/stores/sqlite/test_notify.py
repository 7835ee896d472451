import asyncio
import socket

from outlast.clock import Clock
from outlast.stores.sqlite.notify import LoopListener, to_datagram, to_name


async def test_all_hints_that_have_come_are_heard_at_once() -> None:
    ear = LoopListener(asyncio.get_running_loop(), Clock())
    heard: list[tuple[str, bool]] = []
    has_heard = asyncio.Event()

    def hear(session_id: str, arrived: bool) -> None:
        heard.append((session_id, arrived))
        has_heard.set()

    ear.listeners.add(hear)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for hints in ({"a": False}, {"b": True}, {"a": True, "c": False}, {"a": False}):
            sender.sendto(to_datagram(hints), to_name(ear.address))

    await has_heard.wait()

    assert heard == [("a", True), ("b", True), ("c", False)]
    ear.stop()
