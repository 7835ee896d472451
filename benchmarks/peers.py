"""What the same steps cost elsewhere: only where these libraries happen to be installed.

Each is used as its documentation says, on SQLite, with its own defaults, which differ in what
they promise: see docs/explanation/benchmarks.md. None is a dependency of Outlast.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any

from benchmarks import byhand
from benchmarks.work import TEXTS, stepper, text
from benchmarks.workload import Bench, Measure, Workload
from outlast import Outlast


async def outlast(url: str, steps: int) -> float:
    agent = stepper(steps)
    async with Outlast([agent], store=url) as app:
        began = time.perf_counter()
        session = await app.start(agent, "Go.")
        result = await session.wait()
        assert result.status == "completed", result
        return time.perf_counter() - began


async def dbos(url: str, steps: int) -> float:
    """A workflow whose model and tool calls are steps."""
    DBOS = import_module("dbos").DBOS
    config = {"name": "benchmark", "system_database_url": url}
    DBOS(config={**config, "log_level": "ERROR"})

    @DBOS.step()  # type: ignore[untyped-decorator]
    async def call(number: int) -> str:
        return text(number)

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    async def turn(steps: int) -> None:
        for step in range(steps):
            await call(step)
            await call(step)

    DBOS.launch()
    try:
        began = time.perf_counter()
        await turn(steps)
        return time.perf_counter() - began
    finally:
        DBOS.destroy()


async def langgraph(url: str, steps: int) -> float:
    """A graph of a model and a tool that go back and forth over a list of messages."""
    graph = import_module("langgraph.graph")
    saver = import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver

    def model(state: Any) -> dict[str, Any]:
        return {"messages": [("ai", text(len(state["messages"])))]}

    def tool(state: Any) -> dict[str, Any]:
        return {"messages": [("human", text(len(state["messages"])))]}

    def more(state: Any) -> str:
        return str(graph.END) if len(state["messages"]) >= 2 * steps else "model"

    builder = graph.StateGraph(graph.MessagesState)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(graph.START, "model")
    builder.add_edge("model", "tool")
    builder.add_conditional_edges("tool", more, ["model", graph.END])
    async with saver.from_conn_string(url.removeprefix("sqlite:///")) as checkpointer:
        compiled = builder.compile(checkpointer=checkpointer)
        config = {"configurable": {"thread_id": "1"}, "recursion_limit": 4 * steps}
        began = time.perf_counter()
        await compiled.ainvoke({"messages": [("human", "Go.")]}, config)
        return time.perf_counter() - began


RUNS: dict[str, Callable[[str, int], Awaitable[float]]] = {
    "outlast": outlast,
    "dbos": dbos,
    "langgraph": langgraph,
}


async def measure(name: str, url: str, steps: int) -> float:
    return await RUNS[name](url, steps)


def once(bench: Bench) -> Mapping[str, float]:
    steps = bench.size(200, 20)
    with bench.database("floor").floor() as floor:
        began = time.perf_counter()
        byhand.make_steps(floor, (TEXTS * steps)[:steps])
        found = {"floor": (time.perf_counter() - began) / steps * 1e6}
    for name in RUNS:
        try:
            took = asyncio.run(measure(name, bench.database(name).url, steps))
        except ModuleNotFoundError as error:
            bench.say(f"peers: {name} is left out ({error})")
        else:
            found[name] = took / steps * 1e6
            found[f"{name}, ratio"] = found["floor"] / found[name]
    return found


WORKLOAD = Workload(
    "peers",
    "one session of 200 steps as in `overhead`, with what else is installed",
    (
        Measure("floor", "µs per step"),
        *(Measure(name, "µs per step") for name in RUNS),
        *(Measure(f"{name}, ratio", "of the floor's steps per second") for name in RUNS),
    ),
    once,
    stores=("sqlite",),
)
