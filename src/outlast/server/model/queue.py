"""Queues as the server shows and takes them."""

from pydantic import Field

from outlast.core.queue import MOST_AHEAD, QueueSettings
from outlast.server.model.shape import INSTANT, Id, In, Instant, Out, example, rfc3339_or_none
from outlast.session.queue import QueueEntry, QueueInfo

SETTINGS = {
    "concurrency": 20,
    "per_worker": 0,
    "per_key": 1,
    "rate": 100,
    "per": 60.0,
    "priority": 0,
    "delay": 0.0,
    "singleton": False,
}
A_QUEUE = {
    "name": "reports",
    "settings": SETTINGS,
    "running": 20,
    "waiting": 312,
    "oldest_at": INSTANT,
}
AT_ONCE = "How many turns run at once, in the fleet; 0 is any number."
IN_A_WORKER = "How many turns run at once in one worker; 0 is any number."
OF_A_KEY = "How many turns run at once of a tenant's sessions with one key; 0 is any number."
RATE = "How many turns begin in `per` seconds; 0 is any number."
AHEAD = "A session counts as if it had asked so many seconds earlier, unless it says otherwise."
DELAY = "How many seconds after its start a session's first turn begins at the earliest."
SINGLE = "A tenant has one living session per key: another start returns it."


class QueueEntryIn(In):
    """Where a session stands in a queue."""

    name: Id = Field(examples=["reports"])
    key: Id | None = Field(
        None, description="Turns with the same key may be limited: see `per_key`."
    )
    priority: int | None = Field(
        None,
        ge=-MOST_AHEAD,
        le=MOST_AHEAD,
        description="It counts as if it had asked so many seconds earlier.",
    )
    delay: float | None = Field(None, ge=0, description="How many seconds it waits at first.")

    def value(self) -> QueueEntry:
        return QueueEntry(self.name, self.key or "", self.priority, self.delay)


class QueueSettingsOut(Out):
    """The settings of a queue."""

    model_config = example(SETTINGS)

    concurrency: int = Field(description=AT_ONCE)
    per_worker: int = Field(description=IN_A_WORKER)
    per_key: int = Field(description=OF_A_KEY)
    rate: int = Field(description=RATE)
    per: float
    priority: int = Field(description=AHEAD)
    delay: float = Field(description=DELAY)
    singleton: bool = Field(description=SINGLE)


class QueueOut(Out):
    """A queue, and how many turns run and wait in it."""

    model_config = example(A_QUEUE)

    name: str
    settings: QueueSettingsOut
    running: int
    waiting: int
    oldest_at: Instant | None = Field(
        description="Since when the one that has waited for longest does."
    )


class QueuesOut(Out):
    """All queues, by name."""

    model_config = example({"queues": [A_QUEUE]})

    queues: list[QueueOut]


class QueueIn(In):
    """The settings of a queue to change; what is left out stays as it is."""

    model_config = example({"concurrency": 20, "rate": 100, "per": 60})

    concurrency: int | None = Field(None, ge=0, description=AT_ONCE)
    per_worker: int | None = Field(None, ge=0, description=IN_A_WORKER)
    per_key: int | None = Field(None, ge=0, description=OF_A_KEY)
    rate: int | None = Field(None, ge=0, description=RATE)
    per: float | None = Field(None, gt=0)
    priority: int | None = Field(None, ge=-MOST_AHEAD, le=MOST_AHEAD, description=AHEAD)
    delay: float | None = Field(None, ge=0, description=DELAY)
    singleton: bool | None = Field(None, description=SINGLE)


def queue_out(info: QueueInfo) -> QueueOut:
    return QueueOut(
        name=info.name,
        settings=settings_out(info.settings),
        running=info.running,
        waiting=info.waiting,
        oldest_at=rfc3339_or_none(info.oldest_at),
    )


def settings_out(settings: QueueSettings) -> QueueSettingsOut:
    return QueueSettingsOut(
        concurrency=settings.concurrency,
        per_worker=settings.per_worker,
        per_key=settings.per_key,
        rate=settings.rate,
        per=settings.per,
        priority=settings.priority,
        delay=settings.delay,
        singleton=settings.singleton,
    )
