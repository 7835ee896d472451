from __future__ import annotations

import re

from outlast.engine.counters import WorkerCounters
from outlast.server.metric import exposition
from outlast.store import LaneCount, StoreCounts, WorkerInfo

LINE = re.compile(r'(\w+)((?:\{(?:\w+="(?:[^"\\\n]|\\.)*",?)*\})?) (-?[\d.e+]+)')
ABOUT = re.compile(r"# (HELP|TYPE) (\w+) (.+)")

CENSUS = StoreCounts((LaneCount("waiting", ("request",), 2), LaneCount("idle", (), 5)), 7, 1_000)


def worker(name: str = "wrk_1", counters: str = "") -> WorkerInfo:
    return WorkerInfo(
        worker=name, host="h", pid=1, started_at=0, concurrency=200, held=3, counters=counters
    )


def samples(*workers: WorkerInfo) -> dict[str, float]:
    """Read the document as Prometheus does, and return its samples by name and labels."""
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in exposition(CENSUS, workers, 4, 3_500):
        if about := ABOUT.fullmatch(line):
            kinds.setdefault(about[2], about[1])
            continue
        matched = LINE.fullmatch(line)
        assert matched, line
        name = re.sub(r"_(bucket|sum|count)$", "", matched[1]) if "_step_" in line else matched[1]
        assert name in kinds, f"{name} is not introduced"
        assert matched[1] + matched[2] not in found, "told twice"
        found[matched[1] + matched[2]] = float(matched[3])
    return found


def test_what_the_store_counts_is_told() -> None:
    told = samples()

    assert told["outlast_queued_messages"] == 7
    assert told["outlast_oldest_ready_seconds"] == 2.5
    assert told['outlast_lanes{status="waiting",wait="request"}'] == 2
    assert told['outlast_lanes{status="idle",wait=""}'] == 5
    assert told["outlast_open_streams"] == 4


def test_what_workers_count_is_told_under_their_names() -> None:
    counters = WorkerCounters(lambda: {"groups": 3})
    counters.claims = 9

    told = samples(worker(counters=counters.text()), worker("wrk_2"))

    assert told['outlast_claims_total{worker="wrk_1"}'] == 9
    assert told['outlast_groups_total{worker="wrk_1"}'] == 3
    for name in ("takeovers", "commits", "refusals"):
        assert told[f'outlast_{name}_total{{worker="wrk_1"}}'] == 0
    assert told['outlast_tokens_total{worker="wrk_1",kind="input"}'] == 0
    assert told['outlast_step_seconds_bucket{worker="wrk_1",le="+Inf"}'] == 0
    assert told['outlast_step_seconds_count{worker="wrk_1"}'] == 0
    assert told['outlast_worker_held_lanes{worker="wrk_2"}'] == 3
    assert 'outlast_claims_total{worker="wrk_2"}' not in told
    assert told['outlast_workers{state="working"}'] == 2


def test_no_name_breaks_a_line() -> None:
    told = samples(worker('a"b\\c\nd'))

    assert told[r'outlast_worker_held_lanes{worker="a\"b\\c\nd"}'] == 3
