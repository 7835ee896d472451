from __future__ import annotations

import re

from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.core.queue import QueueSettings
from outlast.core.usage import usage_of
from outlast.engine.counters import MOST_CODES, WorkerCounters
from outlast.server.metric import exposition, of_store
from outlast.session.queue import QueueInfo
from outlast.store import Commit, LaneCount, StoreCounts, WorkerInfo

LINE = re.compile(r'(\w+)((?:\{(?:\w+="(?:[^"\\\n]|\\.)*",?)*\})?) (-?[\d.e+]+)')
ABOUT = re.compile(r"# (HELP|TYPE) (\w+) (.+)")

LANES = (
    LaneCount("waiting", ("request",), 2),
    LaneCount("idle", (), 5),
    LaneCount("failed", ("retry",), 3, "QUOTA_EXCEEDED"),
    LaneCount("failed", ("retry",), 1, "TIMEOUT"),
)
CENSUS = StoreCounts(LANES, 7, date_of(1_000))


def worker(name: str = "wrk_1", counters: str = "") -> WorkerInfo:
    return WorkerInfo(
        worker=name,
        host="h",
        pid=1,
        started_at=date_of(0),
        concurrency=200,
        held=3,
        counters=counters,
    )


QUEUES = [
    QueueInfo(
        name="reports", settings=QueueSettings(), running=2, waiting=3, oldest_at=date_of(1_000)
    ),
    QueueInfo(name="mail", settings=QueueSettings(), running=0, waiting=0, oldest_at=None),
]


def samples(*workers: WorkerInfo) -> dict[str, float]:
    """Read the document as Prometheus does, and return its samples by name and labels."""
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in exposition(CENSUS, workers, [], QUEUES, 4, 3_500):
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


def test_lanes_that_rest_after_a_failure_are_counted_together_and_by_code() -> None:
    told = samples()

    assert told['outlast_lanes{status="failed",wait="retry"}'] == 4
    assert told['outlast_failed_lanes{code="QUOTA_EXCEEDED"}'] == 3
    assert told['outlast_failed_lanes{code="TIMEOUT"}'] == 1


def failed(counters: WorkerCounters, code: str) -> None:
    error = r.Failure(code, "no")
    ended = r.TurnFailed(turn="t1", error=error)
    parked = r.ProviderUnavailable(call_id="c", attempt=1, error=error, not_before=0, since=0)
    commit = Commit(
        session_id="s",
        lane="main",
        worker="w",
        fence=1,
        number=0,
        seen=0,
        at=0,
        records=(ended, parked),
        body=b"",
    )
    counters.committed(commit, 0, 0, "clerk", "openai:gpt")


def test_failed_turns_and_outages_are_told_by_code_agent_and_model() -> None:
    counters = WorkerCounters()
    for code in ("QUOTA", "QUOTA", *(f"CODE_{n}" for n in range(2 * MOST_CODES))):
        failed(counters, code)

    told = samples(worker(counters=counters.text()))

    whose = 'agent="clerk",model="openai:gpt"'
    for name in ("failed_turns", "provider_outages"):
        start = f'outlast_{name}_total{{worker="wrk_1",code='
        assert told[f'{start}"QUOTA",{whose}}}'] == 2
        assert told[f'{start}"CODE_7",{whose}}}'] == 1
        # Users' code chooses codes: so many are told apart, and no more.
        assert told[f'{start}"other",{whose}}}'] == MOST_CODES + 1
        assert sum(label.startswith(start) for label in told) == MOST_CODES + 1


def test_codes_that_few_lanes_failed_with_are_counted_as_other() -> None:
    rare = [LaneCount("failed", (), 1, f"CODE_{n}") for n in range(2 * MOST_CODES)]
    census = StoreCounts((LaneCount("failed", (), 9, "COMMON"), *rare), 0, None)

    lines = [line for line in of_store(census, 0) if line.startswith("outlast_failed_lanes{")]

    assert len(lines) == MOST_CODES + 1
    assert lines[0] == 'outlast_failed_lanes{code="COMMON"} 9'
    assert lines[-1] == f'outlast_failed_lanes{{code="other"}} {MOST_CODES + 1}'


def test_queues_are_told_by_how_many_run_and_wait_and_for_how_long() -> None:
    found = {name: value for name, value in samples().items() if "_queue_" in name}
    assert found == {
        'outlast_queue_running{queue="reports"}': 2,
        'outlast_queue_running{queue="mail"}': 0,
        'outlast_queue_waiting{queue="reports"}': 3,
        'outlast_queue_waiting{queue="mail"}': 0,
        'outlast_queue_oldest_seconds{queue="reports"}': 2.5,
        'outlast_queue_oldest_seconds{queue="mail"}': 0,
    }


def test_what_workers_count_is_told_under_their_names() -> None:
    counters = WorkerCounters(lambda: {"groups": 3})
    counters.claims = 9

    told = samples(worker(counters=counters.text()), worker("wrk_2"))

    assert told['outlast_claims_total{worker="wrk_1"}'] == 9
    assert told['outlast_groups_total{worker="wrk_1"}'] == 3
    for evidence in ("lock_file", "port_refused", "lease_expired", "released"):
        assert told[f'outlast_takeovers_total{{worker="wrk_1",evidence="{evidence}"}}'] == 0
    for name in ("commits", "refusals"):
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


def test_what_models_were_used_for_is_told_by_agent_and_model() -> None:
    counters = WorkerCounters()
    used = r.UsageRecorded(
        call_id="t1.s1", attempt=1, input_tokens=12_345_678, model="gpt", nano_usd=2_500_000_000
    )
    records = (used, used, r.UsageRecorded(call_id="t1.s1.c1", attempt=0, remote="far"))
    commit = Commit(
        session_id="ses",
        lane="main",
        worker="w",
        fence=1,
        number=1,
        seen=0,
        at=0,
        records=records,
        body=b"",
        used=usage_of(records),
    )
    counters.committed(commit, 0, 0, "clerk", "gpt")
    told = samples(worker(counters=counters.text()))

    whose = 'worker="wrk_1",agent="clerk",model="gpt"'
    assert told[f'outlast_usage_tokens_total{{{whose},kind="input"}}'] == 24_691_356
    assert told[f"outlast_usage_usd_total{{{whose}}}"] == 5
    assert told[f"outlast_usage_model_calls_total{{{whose}}}"] == 2
    assert told[f"outlast_usage_unpriced_calls_total{{{whose}}}"] == 0
