"""`outlast queues`: how many turns run and wait in each queue, and what bounds them."""

from collections.abc import Callable
from typing import Annotated

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place, span_of
from outlast.cli.terminal.output import json_out, moment, out, table
from outlast.cli.terminal.run import command
from outlast.core.queue import QueueSettings
from outlast.session.queue import QueueInfo

HEADERS = ("QUEUE", "RUNNING", "WAITING", "OLDEST SINCE", "SETTINGS")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


@command
async def list_queues(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List queues: how many turns run and wait in each, and its settings.

    Example: outlast queues list
    """
    async with open_place(store) as app:
        found = await app.queues.list()
    if as_json:
        json_out([asdict(each) for each in found])
    elif found:
        table(HEADERS, [row(each) for each in found])
    else:
        out("no queues")


@command
async def set_queue(
    name: Name,
    concurrency: Annotated[
        int | None, typer.Option(min=0, help="How many turns run at once; 0: any number.")
    ] = None,
    per_worker: Annotated[
        int | None, typer.Option(min=0, help="How many of them in one worker; 0: any number.")
    ] = None,
    per_key: Annotated[
        int | None, typer.Option(min=0, help="How many of them with one key; 0: any number.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=0, help="How many begin in each --per; 0: any number.")
    ] = None,
    per: Annotated[
        str | None, typer.Option(metavar="SPAN", help="The span of the --rate: 1s, 5m, 2h.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="Seconds ahead of its time, -600 to 600.")
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="From the start to the first turn: 30s, 5m, 2h."),
    ] = None,
    singleton: Annotated[
        bool | None, typer.Option(help="One living session per key: a start finds it.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Change settings of a queue, or make it; what is left out stays as it is.

    That holds at once, in all workers: turns that run go on, and those that wait are held to the
    new settings.

    Example: outlast queues set reports --concurrency 20 --rate 100 --per 1m
    """
    async with open_place(store) as app:
        info = await app.queues.set(
            name,
            concurrency=concurrency,
            per_worker=per_worker,
            per_key=per_key,
            rate=rate,
            per=span_of(per, "--per"),
            priority=priority,
            delay=span_of(delay, "--delay"),
            singleton=singleton,
        )
    if as_json:
        json_out(asdict(info))
    else:
        out(f"{name}: {in_words(info.settings)}")


@command
async def remove_queue(
    name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """Forget a queue's settings: nothing bounds its turns any more.

    Example: outlast queues remove reports
    """
    async with open_place(store) as app:
        await app.queues.remove(name)
    if as_json:
        json_out({"removed": name})
    else:
        out(f"removed {name}; nothing bounds its turns any more")


def row(info: QueueInfo) -> tuple[str, ...]:
    since = moment(info.oldest_at) if info.oldest_at else "-"
    return info.name, str(info.running), str(info.waiting), since, in_words(info.settings)


def in_words(settings: QueueSettings) -> str:
    """Return what a queue's settings bound, in short."""
    found = {
        f"{settings.concurrency} at once": settings.concurrency,
        f"{settings.per_worker} in a worker": settings.per_worker,
        f"{settings.per_key} of a key": settings.per_key,
        f"{settings.rate} in {settings.per:g} s": settings.rate,
        f"{settings.priority:+} s ahead": settings.priority,
        f"{settings.delay:g} s of delay": settings.delay,
        "a singleton": settings.singleton,
    }
    return ", ".join(words for words, is_set in found.items() if is_set) or "no bounds"


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_queues,
    "set": set_queue,
    "remove": remove_queue,
}
