"""`outlast workers`: the workers of a store."""

from msgspec.structs import asdict

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import json_out, moment, out, table
from outlast.cli.terminal.run import command
from outlast.engine.counters import counters_of
from outlast.store import WorkerInfo

HEADERS = ("WORKER", "HOST", "PID", "VERSION", "LANES", "SERVES", "SEEN", "LIVENESS", "STATE")


@command
async def workers(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List the living workers, oldest first.

    LANES is how many each carries now, of how many it takes on at once. LIVENESS is what frees
    its lanes if it is killed: its lock file and its port at once, its lease when it ends. Of one
    that is silent the database sees no connection.

    Example: outlast workers
    """
    async with open_place(store) as app:
        found = await app.workers.list()
    if as_json:
        json_out([{**asdict(info), "counters": counters_of(info)} for info in found])
    elif found:
        table(HEADERS, [row(info) for info in found])
    else:
        out("no workers")


def row(info: WorkerInfo) -> tuple[str, ...]:
    return (
        info.worker,
        info.host,
        str(info.pid),
        info.version,
        f"{info.held}/{info.concurrency}" if info.concurrency else str(info.held),
        serves(info),
        moment(info.seen_at) if info.seen_at else "-",
        shown_by(info),
        "draining" if info.draining else "silent" if info.silent else "working",
    )


def shown_by(info: WorkerInfo) -> str:
    names = {"lock_file": "lock file", "port_refused": f"port {info.liveness_address}"}
    return ", ".join([*(names[each] for each in info.evidence if each in names), "lease"])


def serves(info: WorkerInfo) -> str:
    agents = ", ".join(info.agents) or "-"
    return f"{agents} on {', '.join(info.lanes)}" if info.lanes else agents
