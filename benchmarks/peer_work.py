"""The same steps elsewhere: `python peer_work.py NAME URL STEPS RUNS` in their own environment.

Knows nothing of Outlast, and prints JSON: seconds for one workflow of so many steps with results of
1 KB, and for so many of 10 steps of 50 ms. Each is used as its documentation says, with defaults.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

TEXT = "x" * 1024
SHORT, DELAY = 10, 0.05
Seconds = tuple[float, float]
RESTATE_PORTS = {"ingress": 18180, "admin": 19170, "node": 15222, "service": 19180}


async def call(number: int) -> str:
    return f"{number}{TEXT}"


async def slow(number: int) -> str:
    await asyncio.sleep(DELAY)
    return f"{number}{TEXT}"


async def timed(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def dbos(url: str, steps: int, runs: int) -> Seconds:
    DBOS = import_module("dbos").DBOS
    DBOS(config={"name": "benchmark", "system_database_url": url, "log_level": "ERROR"})
    one, other = DBOS.step()(call), DBOS.step()(slow)  # each is the same with what records it

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    async def turn(steps: int) -> None:
        for number in range(steps):
            await one(number)

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    async def waits(steps: int) -> None:
        for number in range(steps):
            await other(number)

    async def many() -> None:
        handles = [await DBOS.start_workflow_async(waits, SHORT) for _ in range(runs)]
        for handle in handles:
            await handle.get_result()

    DBOS.launch()
    try:
        return await timed(turn(steps)), await timed(many())
    finally:
        DBOS.destroy()


async def absurd(url: str, steps: int, runs: int) -> Seconds:
    client = import_module("absurd_sdk").AsyncAbsurd
    app, asker = client(url), client(url)
    await app.create_queue()

    @app.register_task("turn")  # type: ignore[untyped-decorator]
    async def turn(params: Any, ctx: Any) -> None:
        function = slow if params["slow"] else call
        for number in range(params["steps"]):
            await ctx.step("call", partial(function, number))

    async def until_done(count: int, steps: int, *, is_slow: bool) -> None:
        given = {"steps": steps, "slow": is_slow}
        tasks = [await asker.spawn("turn", given, queue="default") for _ in range(count)]
        for task in tasks:
            await asker.await_task_result(task["task_id"])

    worker = asyncio.create_task(app.start_worker(concurrency=runs))
    try:
        alone = await timed(until_done(1, steps, is_slow=False))
        return alone, await timed(until_done(runs, SHORT, is_slow=True))
    finally:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


async def restate(server: str, steps: int, runs: int) -> Seconds:
    """`server` is the path of its program."""
    sdk, web = import_module("restate"), import_module("hypercorn.asyncio")
    service = sdk.Service("bench")

    @service.handler()  # type: ignore[untyped-decorator]
    async def turn(ctx: Any, given: dict[str, Any]) -> None:
        function = slow if given["slow"] else call
        for number in range(given["steps"]):
            await ctx.run_typed("call", function, number=number)

    config = import_module("hypercorn.config").Config()
    config.bind = [f"127.0.0.1:{RESTATE_PORTS['service']}"]
    serving = asyncio.create_task(web.serve(sdk.app([service]), config))
    with tempfile.TemporaryDirectory() as directory, started(server, directory):
        await registered()

        async def one(steps: int, *, is_slow: bool) -> None:
            given = {"steps": steps, "slow": is_slow}
            await asyncio.to_thread(post, RESTATE_PORTS["ingress"], "bench/turn", given)

        alone = await timed(one(steps, is_slow=False))
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(runs))
        many = await timed(asyncio.gather(*(one(SHORT, is_slow=True) for _ in range(runs))))
    serving.cancel()
    return alone, many


@contextmanager
def started(server: str, directory: str) -> Iterator[None]:
    address = "127.0.0.1"
    env = {
        **os.environ,
        "RESTATE_INGRESS__BIND_ADDRESS": f"{address}:{RESTATE_PORTS['ingress']}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"{address}:{RESTATE_PORTS['admin']}",
        "RESTATE_BIND_ADDRESS": f"{address}:{RESTATE_PORTS['node']}",
    }
    command = [server, "--base-dir", directory, "--log-filter", "error"]
    silent = subprocess.DEVNULL
    process = subprocess.Popen(command, env=env, stdout=silent, stderr=silent)  # noqa: S603
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def registered() -> None:
    given = {"uri": f"http://127.0.0.1:{RESTATE_PORTS['service']}", "use_http_11": False}
    for _ in range(120):
        try:
            await asyncio.to_thread(post, RESTATE_PORTS["admin"], "deployments", given)
        except OSError:
            await asyncio.sleep(0.25)
        else:
            return
    raise RuntimeError("the server did not take the service")


def post(port: int, path: str, given: Any) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}",
        json.dumps(given).encode(),
        {"content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=300).read()  # noqa: S310 - this machine's own


PEERS: dict[str, Callable[[str, int, int], Coroutine[Any, Any, Seconds]]] = {
    "dbos": dbos,
    "absurd": absurd,
    "restate": restate,
}

if __name__ == "__main__":
    name, url, steps, runs = sys.argv[1:]
    found = asyncio.run(PEERS[name](url, int(steps), int(runs)))
    print(json.dumps(found))
