"""A plan is carried out in a directory, without a database; the process is killed halfway.

The next one goes on from the last step that was done, in a new conversation with the same request.
"""

import asyncio
import multiprocessing
import re
import time
from pathlib import Path

from outlast import Agent, tool
from outlast.agents.model import ModelRequest
from outlast.milestones import DurableLoop
from outlast.planning import Planning
from outlast.testing import ScriptedModel, ScriptedReply, call, say

REPORT, TITLES = Path("report.txt"), ["Summary", "Findings", "Outlook"]


@tool
def write(chapter: str) -> str:
    with REPORT.open("a") as lines:
        lines.write(f"{chapter}\n")
    if chapter == "Findings" and multiprocessing.parent_process():
        time.sleep(60)  # it is written, and no step says so yet
    return f"wrote {chapter}"


def reply(request: ModelRequest) -> ScriptedReply:  # a model that reads how far its plan is
    print(" ".join(re.findall(r"- (.+)", request.tail)) or "No plan yet.")
    remaining = re.findall(r"- (\d+)\. (\w+) \(pending\)", request.tail)
    if "Objective" not in request.tail:
        return call("planning_setup_plan", objective="a report", initial_steps=TITLES)
    if not remaining:
        return say("The report is written.")
    last = getattr(request.view.messages[-1], "results", ())
    if last and last[0].text == f"wrote {remaining[0][1]}":
        return call("planning_update_step", step_id=int(remaining[0][0]), status="done")
    return call("write", chapter=remaining[0][1])


writer = Agent("writer", ScriptedModel(reply), tools=[write], planning=Planning())


def work() -> None:
    result = asyncio.run(DurableLoop(writer, "worker-001", str).execute("Write the report."))
    print(f"{result.output} ({result.attempts} attempts)")


if __name__ == "__main__":
    first = multiprocessing.get_context("spawn").Process(target=work)
    first.start()
    while not (REPORT.exists() and "Findings" in REPORT.read_text()):
        time.sleep(0.01)
    first.kill()  # SIGKILL: nothing can be tidied up
    first.join()
    work()
    assert REPORT.read_text().split() == ["Summary", "Findings", "Findings", "Outlook"]
