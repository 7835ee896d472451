"""The settings of a worker."""

from msgspec import Struct

from outlast.core.instant import Span
from outlast.core.name import check_who
from outlast.core.setting import (
    address_of,
    count_of,
    deployment_of,
    flag_of,
    names_of,
    one_of,
    seconds_of,
)
from outlast.engine.pin import PinScope


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """`concurrency` lanes at once; its lease lasts for `lease` and is renewed three times as often.

    `grace` is how long a graceful stop waits for calls under way, `stop_grace` how long calls have
    to end that are cancelled or took too long, `flush` the shortest time between two commits of a
    streamed answer, `lane_cache` about how many bytes of lanes are kept in memory after they were
    given back, and `rest` the pause before a lane that failed for a reason unforeseen is tried
    again. Only sessions of `agents` are worked on, where some are named, and only lanes whose name
    fits one of the patterns in `lanes` (`main`, `bulk-*`), where there are some. At a
    `liveness_address` (`0.0.0.0:7070`; port 0 is any) it answers workers on other hosts with its
    name, so that these can prove its death before its lease ends; PostgreSQL only.
    With `resume=False` it leaves what was unfinished when it started: it takes only sessions to
    which something has come since (their start, a message, an answer, a child's result), whoever
    sent it. Other workers take the rest.
    `deployment` names the version of the code, `2026-11-17.3`. Then a "turn" is carried to its end
    by workers of the deployment that it began on, while there are any; with `pin="session"` the
    whole session is, and waits for them; with "none" nothing is.
    """

    concurrency: int = 200
    lease: Span = 30.0
    poll: Span = 0.8
    watch: Span = 0.3
    grace: Span = 5.0
    stop_grace: Span = 5.0
    flush: Span = 0.1
    lane_cache: int = 64 * 1024 * 1024
    rest: Span = 5.0
    name: str = ""
    agents: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    liveness_address: str = ""
    resume: bool = True
    deployment: str = ""
    pin: PinScope = "turn"

    def __post_init__(self) -> None:
        count_of("concurrency", self.concurrency)
        count_of("lane_cache", self.lane_cache, least=0)
        for name in ("lease", "poll", "watch", "rest"):
            seconds_of(name, getattr(self, name))
        for name in ("grace", "stop_grace", "flush"):
            seconds_of(name, getattr(self, name), or_none=True)
        for name in ("agents", "lanes"):
            names_of(name, getattr(self, name))
        check_who("name of a worker", self.name)
        flag_of("resume", self.resume)
        deployment_of("deployment", self.deployment)
        one_of(PinScope, "pin", self.pin)
        if self.liveness_address != "":
            address_of("liveness_address", self.liveness_address)
