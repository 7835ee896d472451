"""`python -m chaos`: chaos on real processes, takeovers by the clock, and outages of a provider.

Returns 1 if a promise was broken or takeovers take too long. What is known of a session that
was found wrong is kept beside the workers' own logs, and their place is named.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import asdict
from rich.console import Console

from chaos.budget import BudgetSettings, run_budgets
from chaos.deploys import DeployReport, DeploySettings, run_deploys
from chaos.disk import compiler, run_disk
from chaos.display import show, show_takeovers, watching
from chaos.failover import FailoverSettings, run_failover
from chaos.long_plan import KILLED, STEPS, run_plans
from chaos.outage import BLOCKED, KINDS, OutageReport, OutageSettings, run_outage
from chaos.place import opened
from chaos.report import Report, report_on, traces
from chaos.rolling import RollingReport, RollingSettings, run_rolling
from chaos.run import Settings, run_chaos
from chaos.takeover import Takeovers, measure

KILLS, STOPS = 7, 3
STORES = ("sqlite", "postgres")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make chaos ARGS=…",
        description="Workers are killed and stopped and the database is shaken while users talk;"
        " then logs and ledger are held against the promises.",
    )
    add = parser.add_argument
    add("--store", choices=[*STORES, "both"], default="both", help="where (default: both)")
    add("--sessions", type=int, default=200, help="how many there are (default: 200)")
    add("--seconds", type=float, default=60.0, help="how long things go wrong (default: 60)")
    add("--workers", type=int, default=4, help="worker processes (default: 4)")
    add("--lease", type=float, default=6.0, help="of the workers, in seconds (default: 6)")
    add(
        "--seed", type=int, default=None, help="which faults and plans (default: another each time)"
    )
    add("--no-takeovers", action="store_true", help="leave out the takeovers by the clock")
    add("--no-outages", action="store_true", help="leave out the outages of a provider")
    add(
        "--outage",
        choices=[*KINDS, "all"],
        default="",
        help="nothing but an outage of a provider, in this way or in all",
    )
    add("--budgets", action="store_true", help="nothing but sessions that share a budget")
    add("--deploys", action="store_true", help="nothing but deploys under live sessions")
    add("--plans", action="store_true", help="nothing but long plans whose worker is killed")
    add("--json", action="store_true", help="write the report as JSON")
    return parser.parse_args(arguments)


async def run_one(settings: Settings, console: Console) -> Report:
    """Run chaos on one store, and keep what is known if something was found wrong."""
    with tempfile.TemporaryDirectory(prefix="outlast-chaos-") as name:
        began = time.monotonic()
        with watching(console, settings) as look:
            evidence = await run_chaos(settings, Path(name), look)
        report = report_on(evidence, settings.seed, time.monotonic() - began)
        if not report.is_clean:
            (Path(name) / "trace.txt").write_text("\n".join(traces(evidence, report.findings)))
            kept = shutil.copytree(name, f"{name}-kept", ignore=sockets_in)
            console.print(f"what is known is in {kept}")
    return report


def sockets_in(directory: str, names: list[str]) -> list[str]:
    """Name the sockets of killed workers, which cannot be copied."""
    return [name for name in names if (Path(directory) / name).is_socket()]


async def measure_one(store: str, lease: float, console: Console) -> list[Takeovers]:
    """Measure takeovers on one store: after kills by default, and by a short lease."""
    with tempfile.TemporaryDirectory(prefix="outlast-chaos-") as name:
        async with opened(store, Path(name)) as place:
            with console.status(f"{store}: takeovers after kills, with default settings"):
                kills = await measure(place, Path(name), "kill", times=KILLS)
            with console.status(f"{store}: takeovers when the lease has run out"):
                stops = await measure(place, Path(name), "stop", times=STOPS, lease=lease)
            return [kills, stops]


async def run_all(options: argparse.Namespace, console: Console) -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end_all, asyncio.current_task())
    seed = options.seed if options.seed is not None else int(time.time())
    stores = STORES if options.store == "both" else (options.store,)
    if options.budgets:
        return 1 if await share_budgets(stores, seed, console) else 0
    if options.deploys:
        return 1 if await deploy_all(options, stores, seed, console) else 0
    if options.plans:
        return 1 if await carry_plans(stores, seed, console) else 0
    if options.outage:
        return 1 if await lose_provider(options, stores, seed, console) else 0
    reports: list[Report] = []
    measured: list[Takeovers] = []
    for store in stores:
        settings = Settings(
            store=store,
            sessions=options.sessions,
            seconds=options.seconds,
            seed=seed,
            workers=options.workers,
            lease=options.lease,
        )
        reports.append(await run_one(settings, console))
        if not options.json:
            show(console, reports[-1])
        if not options.no_takeovers:
            measured += await measure_one(store, options.lease, console)
    lost = await fail_over(options, console) if "postgres" in stores else []
    if "sqlite" in stores:
        lost += await break_disk(seed, console)
    if not options.no_outages:
        lost += await lose_provider(options, stores, seed, console)
    lost += await carry_plans(stores, seed, console)
    lost += await share_budgets(stores, seed, console)
    lost += await deploy_all(options, stores, seed, console)
    tell(console, reports, measured, as_json=options.json)
    is_good = all(r.is_clean for r in reports) and all(m.is_in_time for m in measured)
    return 0 if is_good and not lost else 1


async def fail_over(options: argparse.Namespace, console: Console) -> list[str]:
    """Kill a primary under load and promote its standby: one that is synchronous, one that lags."""
    found: list[str] = []
    for synchronous in (True, False):
        kind = "synchronous" if synchronous else "lagging"
        settings = FailoverSettings(
            synchronous=synchronous,
            sessions=min(options.sessions, 40),
            seconds=options.seconds / 2,
            workers=options.workers,
            lease=options.lease,
        )
        with (
            tempfile.TemporaryDirectory(prefix="outlast-chaos-") as name,
            console.status(f"postgres: failover to a {kind} standby"),
        ):
            wrong = await run_failover(settings, Path(name))
        console.print(f"failover to a {kind} standby: {len(wrong) or 'nothing'} found wrong")
        for text in wrong[:20]:
            console.print(f"  {text}")
        found += wrong
    return found


async def break_disk(seed: int, console: Console) -> list[str]:
    """Lose power between two syncs, and have the disk be read-only and full."""
    if compiler() is None:
        console.print("a disk that fails: NOT RUN, since this machine has no C compiler")
        return []
    with (
        tempfile.TemporaryDirectory(prefix="outlast-chaos-") as name,
        console.status("sqlite: power loss, a disk that is read-only, a full disk"),
    ):
        wrong = await run_disk(Path(name), seed)
    console.print(f"a disk that fails: {len(wrong) or 'nothing'} found wrong")
    for text in wrong[:20]:
        console.print(f"  {text}")
    return wrong


async def lose_provider(
    options: argparse.Namespace, stores: Sequence[str], seed: int, console: Console
) -> list[str]:
    """Have a provider be away in every way; those that take a minute to be tried again at once."""
    kinds = [options.outage] if options.outage not in ("", "all") else [*KINDS]
    slow = tuple(kind for kind in kinds if kind in BLOCKED)
    groups = [*((kind,) for kind in kinds if kind not in BLOCKED), *([slow] if slow else [])]
    found: list[str] = []
    for store in stores:
        for group in groups:
            with console.status(f"{store}: a provider is away: {', '.join(group)}"):
                reports = await asyncio.gather(*(lose_one(store, kind, seed) for kind in group))
            for report in reports:
                console.print(str(report))
                for text in report.wrong[:20]:
                    console.print(f"  {text}")
                found += report.wrong
    return found


async def lose_one(store: str, kind: str, seed: int) -> OutageReport:
    # A call that nobody answers takes seconds to be given up: with four, no lane would park.
    tries = 2 if kind == "silent" else 4
    settings = OutageSettings(store=store, kind=kind, seed=seed, max_attempts=tries)
    with tempfile.TemporaryDirectory(prefix="outlast-chaos-") as name:
        return await run_outage(settings, Path(name))


async def carry_plans(stores: Sequence[str], seed: int, console: Console) -> list[str]:
    """Kill the worker of a long plan twenty times, in each way to go on."""
    found: list[str] = []
    for store in stores:
        with (
            tempfile.TemporaryDirectory(prefix="outlast-chaos-") as name,
            console.status(f"{store}: a plan of {STEPS} steps, {KILLED} kills"),
        ):
            async with opened(store, Path(name)) as place:
                ran = await run_plans(place, Path(name), seed)
        for each in ran:
            console.print(str(each))
            found += each.wrong
    return found


async def share_budgets(stores: Sequence[str], seed: int, console: Console) -> list[str]:
    """Kill the workers of twenty trees of sessions that share one budget, again and again."""
    found: list[str] = []
    for store in stores:
        with (
            tempfile.TemporaryDirectory(prefix="outlast-chaos-") as name,
            console.status(f"{store}: sessions with children under one budget"),
        ):
            async with opened(store, Path(name)) as place:
                report = await run_budgets(BudgetSettings(seed=seed), Path(name), place)
        console.print(str(report))
        found += report.wrong
    return found


async def deploy_all(
    options: argparse.Namespace, stores: Sequence[str], seed: int, console: Console
) -> list[str]:
    """Deploy and roll back under sessions that are parked, and under chats that stream."""
    found: list[str] = []
    for store in stores:
        parked = DeploySettings(store=store, sessions=options.sessions, seed=seed)
        chats = RollingSettings(store=store, chats=min(options.sessions, 100), seed=seed)
        with (
            tempfile.TemporaryDirectory(prefix="outlast-chaos-") as one,
            tempfile.TemporaryDirectory(prefix="outlast-chaos-") as other,
            console.status(f"{store}: deploys under parked sessions, and under streaming chats"),
        ):
            reports: list[DeployReport | RollingReport] = [
                await run_deploys(parked, Path(one)),
                await run_rolling(chats, Path(other)),
            ]
        for report in reports:
            console.print(str(report))
            for text in report.wrong[:20]:
                console.print(f"  {text}")
            found += report.wrong
    return found


def end_all(task: asyncio.Task[int] | None) -> None:
    assert task is not None
    task.cancel()


def tell(
    console: Console, reports: list[Report], measured: list[Takeovers], *, as_json: bool
) -> None:
    if as_json:
        timed = [{**asdict(m), "median": m.median, "in_time": m.is_in_time} for m in measured]
        text = msgspec.json.encode({"runs": reports, "takeovers": timed})
        sys.stdout.write(msgspec.json.format(text).decode() + "\n")
    elif measured:
        show_takeovers(console, measured)


def main() -> int:
    options = parse(sys.argv[1:])
    logging.disable(logging.WARNING)  # what users are told while the store is away is expected
    console = Console(highlight=False, soft_wrap=True, stderr=options.json)
    try:
        return asyncio.run(run_all(options, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
