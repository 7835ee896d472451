"""The settings of a worker: how much it takes on, how long it waits, what it is called.

Owns their defaults and what each means. They are a worker's own and stand in no log: another worker
may carry the same lane with others. `worker.py` and `lane_runner.py` go by them.
"""

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
    """How a worker works, and which sessions it takes.

    Attributes:
        concurrency: Lanes at once.
        lease: How long the worker counts as alive after a renewal; it renews three times as often.
        poll: Time between two looks for work, in case a hint was lost.
        watch: Time between two looks for dead workers.
        grace: How long a graceful stop waits for calls under way.
        stop_grace: How long calls have to end that were cancelled or took too long.
        flush: Shortest time between two commits of a streamed answer.
        lane_cache: About how many bytes of lanes stay in memory after they were given back.
        rest: Pause before a lane is tried again after an unforeseen error.
        name: Made up if empty.
        agents: Take only sessions of these agents; all if empty.
        lanes: Take only lanes with a name that fits one of these patterns: `main`, `bulk-*`.
        liveness_address: `HOST:PORT` at which other workers can prove that this one is dead before
            its lease ends; PostgreSQL only. Port 0 is any free one.
        resume: With False, leave sessions that were unfinished when the worker started, until
            something arrives for them.
        deployment: Name of this version of the code: "2026-11-17.3".
        pin: What stays with the deployment that it began on: a "turn" while a worker of it is
            there, the whole "session", or nothing ("none").
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
