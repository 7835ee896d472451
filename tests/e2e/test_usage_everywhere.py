"""Usage by each key is the sum of what the logs recorded, at each surface and after an erasure."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from http_scene import FAST, Caller, Scene
from msgspec.structs import replace
from spending import recorded_by, spending_of
from terminal import Place

from outlast import Agent, ModelOptions, Outlast
from outlast.core.record import NO_USAGE, UsageSum
from outlast.server.asgi import create
from outlast.store import UsageKey
from outlast.testing.scripted import ScriptedModel, calls, say
from outlast.usage import ModelPrice, Prices

KEYS: tuple[UsageKey, ...] = get_args(UsageKey)
PRICED = ModelOptions(prices=Prices(known={"large": ModelPrice(input=3, output=15)}))
FIELDS = ("input_tokens", "output_tokens", "model_calls", "unpriced_calls", "nano_usd")
SAMPLE = re.compile(
    r'^outlast_usage_(\w+)_total\{worker="\w+",agent="(\w+)",model="(\w+)"[^}]*\} (\S+)$'
)

Figures = dict[str, tuple[int, ...]]


def desk() -> Agent[Any, Any]:
    """Asks two clerks, whose model nobody has a price of."""
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel([say("Filed.")], name="small"))
    both = calls(("clerk", {"message": "one"}), ("clerk", {"message": "two"}))
    model = ScriptedModel([both, say("Done."), say("Done again.")], name="large")
    return Agent("desk", model, subagents=[clerk], model_options=PRICED)


def figures(sums: dict[str, UsageSum]) -> Figures:
    return {key: tuple(getattr(used, name) for name in FIELDS) for key, used in sums.items()}


def of_lines(lines: list[dict[str, Any]]) -> Figures:
    """Return what a terminal or a server has told."""
    return {line["key"]: tuple(line["total"][name] for name in FIELDS) for line in lines}


async def by_metrics(caller: Caller) -> Counter[tuple[str, str, str]]:
    """Return what workers have counted: of each kind, agent and model."""
    found: Counter[tuple[str, str, str]] = Counter()
    for line in (await caller.get("/v1/metrics")).text.splitlines():
        if sample := SAMPLE.match(line):
            kind, agent, model, value = sample.groups()
            found[kind, agent, model] += round(float(value) * (10**9 if kind == "usd" else 1))
    return found


async def test_each_surface_has_the_sum_of_the_logs_by_each_key(tmp_path: Path) -> None:
    place = Place(tmp_path)
    quick = replace(FAST, lease=3.0)
    async with Outlast([desk()], store=f"sqlite:///{tmp_path}/outlast.db", worker=quick) as app:
        bank = Scene(app, create(app, None))
        first = await app.start("desk", "go", principal="ada")
        await first.wait()
        await (await first.send("on", principal="bob")).result()
        for tenant in ("default", "acme"):
            await (await app.start("desk", "go", tenant=tenant, principal="bob")).wait()
        spending = await spending_of(app)
        logs = {key: figures(recorded_by(spending.logs, key)) for key in KEYS}
        ours = [log for log in spending.logs if log.info.tenant == "default"]

        assert {key: len(found) for key, found in logs.items()} == {
            "session": 9,
            "agent": 2,
            "model": 2,
            "tenant": 2,
            "principal": 2,
            "day": len(logs["day"]),
        }
        assert not list(spending.complaints())
        async with bank.caller() as caller:
            for key in KEYS:
                assert of_lines(place.json("usage", "--by", key)["lines"]) == logs[key]
                lines = (await caller.ask("GET", f"/usage?by={key}"))["lines"]
                assert of_lines(lines) == figures(recorded_by(ours, key))
            await until_counted(caller, logs["model"])

        await app.erase(first.id)

        left = {info.session_id for info in await app.sessions()}
        gone = [log for log in spending.logs if log.info.session_id not in left]
        assert len(gone) == 3
        erased = sum(recorded_by(gone, "session").values(), NO_USAGE)
        by_session = of_lines(place.json("usage", "--by", "session")["lines"])
        assert by_session.keys() == left | {""}
        assert by_session[""] == figures({"": erased})[""]
        assert of_lines(place.json("usage", "--by", "agent")["lines"]) == logs["agent"]
        for key in KEYS:
            told = {line.key: line.total for line in await app.usage.by(key)}
            assert key == "session" or figures(told) == logs[key]


async def until_counted(caller: Caller, by_model: Figures) -> None:
    """Wait until the worker has told its counters: they are those of the logs."""
    due = Counter(
        {
            (kind, agent, model): amount
            for agent, model in (("desk", "large"), ("clerk", "small"))
            for kind, amount in of_metrics(by_model[model]).items()
        }
    )
    async with asyncio.timeout(60):
        while (found := await by_metrics(caller)) != due:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
    assert found == due


def of_metrics(used: tuple[int, ...]) -> dict[str, int]:
    asked, said, made, unpriced, nano = used
    return {
        "tokens": asked + said,
        "model_calls": made,
        "unpriced_calls": unpriced,
        "usd": nano,
    }
