"""`outlast demo` as a user runs it, and the counting that its promises rest on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from outlast.cli.demo.effect import DemoEffect, ModelAsked
from outlast.cli.demo.kill import MOST_KILLS, Kill, plan
from outlast.cli.demo.report import DemoCounts, count
from outlast.core import record as r
from outlast.core.message import Text
from outlast.core.record import AnyRecord, Entry

DEMO = (sys.executable, "-m", "outlast.cli", "demo")
Running = subprocess.Popen[str]


@contextmanager
def demo(*options: str) -> Iterator[Running]:
    pipe = subprocess.PIPE
    running = subprocess.Popen([*DEMO, *options], stdout=pipe, stderr=pipe, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def workers_in(directory: Path) -> list[str]:
    listed = subprocess.run(
        ["/bin/ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True
    )
    return [line for line in listed.stdout.splitlines() if f"demo.process {directory} " in line]


@pytest.fixture(scope="module")
def tellings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running, Path]]:
    """One story told to a program and one to a pipe, at the same time."""
    place = tmp_path_factory.mktemp("demo")
    counted, told = place / "counted", place / "told"
    with (
        demo("--json", "--seed", "1", "--kills", "3", "--dir", str(counted)) as to_a_program,
        demo("--kills", "1", "--dir", str(told)) as to_a_pipe,
    ):
        yield to_a_program, to_a_pipe, told


@pytest.fixture(scope="module")
def counted(tellings: tuple[Running, Running, Path]) -> dict[str, Any]:
    out, err = tellings[0].communicate(timeout=100)
    assert (tellings[0].returncode, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def lines(tellings: tuple[Running, Running, Path]) -> list[str]:
    out, err = tellings[1].communicate(timeout=100)
    assert (tellings[1].returncode, err) == (0, "")
    return out.splitlines()


def test_kills_repeat_nothing_and_lose_nothing(counted: dict[str, Any]) -> None:
    promised = {
        "kills": 3,
        "model_calls_repeated": 0,
        "effects": 9,
        "effects_repeated": 0,
        "deliveries_lost": 0,
        "broken": [],
    }
    assert counted.items() >= promised.items()
    assert set(counted["kills_by_phase"]) == {"stream", "tool", "between"}


def test_a_call_cut_off_is_the_only_one_paid_for_twice(counted: dict[str, Any]) -> None:
    cut_off = counted["model_calls_cut_off"]
    assert counted["model_calls_paid"] == counted["model_calls_answered"] + cut_off
    assert 1 <= cut_off <= counted["kills"]


def test_every_kill_is_followed_by_a_takeover(counted: dict[str, Any]) -> None:
    assert len(counted["takeover_ms"]) == 3
    assert all(ms > 0 for ms in counted["takeover_ms"])


def test_a_pipe_gets_plain_lines_and_a_verdict_at_the_end(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert text.count("☠ SIGKILL") == text.count("takes over from") == 1
    assert "✓ 1 kill, and the job was done exactly once." in lines
    assert " show ses_" in lines[-2]


def test_no_worker_outlives_the_demo(
    lines: list[str], tellings: tuple[Running, Running, Path]
) -> None:
    assert lines
    assert workers_in(tellings[2]) == []


def until(out: IO[str] | None, text: str) -> None:
    assert out is not None
    for line in out:
        if text in line:
            return
    raise AssertionError(f"{text!r} was never said")


def test_ctrl_c_leaves_no_worker_behind(tmp_path: Path) -> None:
    with demo("--kills", "0", "--dir", str(tmp_path)) as running:
        until(running.stdout, "you ▸")
        assert len(workers_in(tmp_path)) == 2
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=100)
    assert (running.returncode, err.strip()) == (130, "stopped; no worker is left behind")
    assert workers_in(tmp_path) == []


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with demo("--dir", str(tmp_path)) as running:
        _, err = running.communicate(timeout=100)
    assert running.returncode == 2
    assert "is not empty" in err
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


# The plan


@pytest.mark.parametrize("seed", range(50))
def test_the_same_seed_plans_the_same_kills_in_every_phase(seed: int) -> None:
    assert plan(seed, 6) == plan(seed, 6)
    assert {cue.phase for cue in plan(seed, 3)} == {"stream", "tool", "between"}
    assert len(plan(seed, MOST_KILLS)) == MOST_KILLS


def test_another_seed_plans_other_kills() -> None:
    assert len({tuple(plan(seed, 6)) for seed in range(50)}) == 50


# The counting


def log(*records: AnyRecord) -> list[Entry]:
    """A log with a record every ten milliseconds, from 10 on."""
    return [Entry(n, n * 10, "main", record) for n, record in enumerate(records, start=1)]


def answer(call_id: str, attempt: int) -> r.MessageCompleted:
    return r.MessageCompleted(call_id=call_id, attempt=attempt, parts=(Text("done"),))


def tally_of(
    entries: Sequence[Entry] = (),
    asked: Sequence[ModelAsked] = (),
    effects: Sequence[DemoEffect] = (),
    kills: Sequence[Kill] = (),
    receipts: Sequence[str] = (),
) -> DemoCounts:
    return count(entries, asked, effects, kills, receipts)


def test_a_call_made_after_its_answer_was_recorded_is_repeated() -> None:
    asked = [ModelAsked(5, "w1", "t1.s1", 1), ModelAsked(15, "w2", "t1.s1", 2)]
    counters = tally_of(log(answer("t1.s1", 1)), asked)
    assert (counters.model_calls_repeated, counters.model_calls_cut_off) == (1, 0)
    assert "1 recorded model calls were paid for again" in counters.broken


def test_a_call_made_again_before_any_answer_was_recorded_is_cut_off() -> None:
    asked = [ModelAsked(1, "w1", "t1.s1", 1), ModelAsked(5, "w2", "t1.s1", 2)]
    counters = tally_of(log(answer("t1.s1", 2)), asked)
    assert (counters.model_calls_repeated, counters.model_calls_cut_off) == (0, 1)


def test_an_effect_done_under_two_keys_is_repeated() -> None:
    effects = [
        DemoEffect(1, "w1", "refund", "A-101", "a"),
        DemoEffect(2, "w2", "refund", "A-101", "b"),
    ]
    counters = tally_of(effects=effects)
    assert (counters.effects, counters.effects_repeated) == (1, 1)
    assert "1 effects happened more than once" in counters.broken


def test_an_effect_that_the_world_refused_to_do_again_is_not_repeated() -> None:
    first = DemoEffect(1, "w1", "refund", "A-101", "a")
    counters = tally_of(effects=[first, DemoEffect(2, "w2", "refund", "A-101", "a", done=False)])
    assert (counters.effects, counters.effects_repeated, counters.effects_asked_again) == (1, 0, 1)


def test_a_delivery_with_a_receipt_that_was_never_settled_is_lost() -> None:
    settled = log(r.DeliverySettled(delivery_id="dlv_1", outcome="completed"))
    counters = tally_of(settled, receipts=["dlv_1", "dlv_2"])
    assert (counters.deliveries_settled, counters.deliveries_lost) == (1, 1)
    assert "1 accepted deliveries were lost" in counters.broken


def test_a_lane_that_nobody_took_over_breaks_a_promise() -> None:
    kill = Kill("w1", "stream", (), 0.0)
    assert tally_of(kills=[kill]).takeovers_missing == 1
