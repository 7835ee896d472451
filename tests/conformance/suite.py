"""Runs the suite against the adaptor, and says how each of its tests ended."""

import asyncio
import json
import os
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from conformance.adaptor import Adaptor, stream
from http_scene import FAST, on_a_socket

from outlast import Outlast
from outlast.server import ServerSettings
from outlast.server.serve import open_socket

SUITE = Path(__file__).parents[1] / "js" / "conformance"
SETTINGS = ServerSettings(port=0, long_poll=1.0, heartbeat=0.2, cors_origins=("*",))


@asynccontextmanager
async def adapted(store: str) -> AsyncIterator[str]:
    """Serve an app and the adaptor in front of it; give the adaptor's address."""
    async with (
        Outlast([stream], store=store, worker=FAST) as app,
        on_a_socket(app, SETTINGS) as (host, port),
    ):
        adaptor = Adaptor(app, f"http://{host}:{port}")
        server = uvicorn.Server(uvicorn.Config(adaptor, log_level="error", lifespan="off"))
        with open_socket(ServerSettings(port=0)) as to:
            task = asyncio.create_task(server.serve([to]))
            try:
                yield "http://{}:{}".format(*to.getsockname()[:2])
            finally:
                server.should_exit = server.force_exit = True
                await task
                await adaptor.close()


async def run_suite(store: str = "memory://", only: str = "") -> dict[str, str]:
    """Return how each test ended, by its title: "passed", or why it failed."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        async with adapted(store) as url:
            process = await asyncio.create_subprocess_exec(
                *(SUITE / "node_modules/.bin/vitest", "run", "--root", SUITE),
                *("--reporter=json", "--testTimeout=60000", f"--outputFile={report}"),
                *(("-t", only) if only else ()),
                env={**os.environ, "STREAMS_URL": url},
                stdout=DEVNULL,
                stderr=DEVNULL,
            )
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
        told = json.loads(report.read_text())
    return {
        " > ".join((*each["ancestorTitles"], each["title"])): ended(each)
        for file in told["testResults"]
        for each in file["assertionResults"]
        if each["status"] not in ("skipped", "pending")
    }


def ended(test: dict[str, object]) -> str:
    if test["status"] == "passed":
        return "passed"
    why = test["failureMessages"]
    return str(why[0] if isinstance(why, list) and why else "failed").split("\n")[0]
