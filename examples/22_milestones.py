"""A plan whose worker is killed: what the model is sent, by transcript and by milestone."""

import multiprocessing
import os
import re
from pathlib import Path

import outlast.sync
from outlast import Agent, Context, Outlast, tool
from outlast.agents.model import ModelRequest
from outlast.planning import Planning
from outlast.testing import ScriptedModel, ScriptedReply, call, say

STEPS = [f"part {number}" for number in range(1, 11)]


@tool(idempotent=True)
def work(ctx: Context, step: int) -> str:  # in one of them the worker dies, once
    died = Path(f"{ctx.session.agent}.{step}")
    if step == 7 and ctx.session.agent != "undisturbed" and not died.exists():
        died.touch()
        os.kill(os.getpid(), 9)
    return f"step {step} is done"


def reply(request: ModelRequest) -> ScriptedReply:  # it reads its plan, as a model does
    if "All steps are done." in request.tail:
        return say("All of it is done.")
    if not (remaining := re.search(r"- (\d+)\. ", request.tail.partition("Remaining")[2])):
        return call("planning_setup_plan", objective="All of it", initial_steps=STEPS)
    step = int(remaining[1])
    if f"step {step} is done" in str(request.view.messages[-1]):
        return call("planning_update_step", step_id=step, status="done")
    return call("work", step=step)


model = ScriptedModel(reply)
agents = [
    *(
        Agent(way, model, tools=[work], planning=Planning())
        for way in ("undisturbed", "transcript")
    ),
    Agent("milestone", model, tools=[work], planning=Planning(), resume="milestone"),
]


def run(name: str) -> None:
    with outlast.sync.opened(Outlast(agents, store="sqlite:///plans.db")) as app:
        session = app.start(name, "Do all of it.", dispatch_id=name)
        print(name, session.wait().usage.own.input_tokens, "tokens were sent")


if __name__ == "__main__":
    run("undisturbed")
    for name in ("transcript", "milestone"):
        for _ in range(2):  # the first is killed, the second goes on
            worker = multiprocessing.get_context("spawn").Process(target=run, args=(name,))
            worker.start()
            worker.join()
