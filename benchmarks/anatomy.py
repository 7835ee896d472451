"""Which functions of a store are timed, to say where the time of a step goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.stopwatch import Parts
from outlast.core import codec
from outlast.stores.postgres.pipeline import PipelinedConnection
from outlast.stores.postgres.writer import WriteGroup
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.writer import Writer

DISK = "waiting for the disk"
BEGIN = ((Database, "begin"), (Database, "try_begin"))
PACKING = ((codec.Packer, "pack"),)


@dataclass(frozen=True)
class Anatomy:
    """The parts of a store, all on the event loop's thread.

    `durable` is the part that waits for the disk, if it can be told from the others, and `rest`
    what the time is called that is in no part.
    """

    rest: str
    on_loop: Parts = field(default_factory=dict)
    durable: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.on_loop, *([DISK] if self.durable else []), self.rest)


SQLITE = Anatomy(
    on_loop={
        "SQL": ((Database, "one"), (Database, "run"), (Database, "all"), *BEGIN),
        "compression": PACKING,
        "COMMIT": ((Database, "commit"),),
        "writer's rest": ((Writer, "write_here"), (Writer, "_write_group")),
    },
    durable="COMMIT",
    rest="other threads and processes",
)

POSTGRES = Anatomy(
    on_loop={
        "compression": PACKING,
        "group composed": ((WriteGroup, "compose"),),
        "sent": ((PipelinedConnection, "send"),),
        "answer received": ((PipelinedConnection, "_read"),),
        "answer taken in": ((WriteGroup, "accept"),),
    },
    rest="waiting for the server",
)
