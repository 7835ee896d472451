"""Metrics as Prometheus reads them: the store's census, the workers' counters, this process.

A gauge of the store is the same whichever server is asked; a worker's counters carry its name.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outlast.core.instant import milliseconds_at
from outlast.engine.counters import MOST_CODES, OTHER, counters_of
from outlast.session.provider import ProviderOutage
from outlast.session.queue import QueueInfo
from outlast.store import StoreCounts, WorkerInfo

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"

COUNTERS = {
    "claims": "Lanes that the worker has claimed.",
    "commits": "Commits that it has written.",
    "refusals": "Commits of its that the store has refused.",
    "blocked_loops": "How often code of the app has blocked its event loop for over a second.",
    "groups": "Transactions of its process, each with all that waited for the one before.",
    "grouped": "What they carried: grouped / groups is the group size.",
}
TOKENS = ("input_tokens", "output_tokens")

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]


def exposition(
    census: StoreCounts,
    workers: Sequence[WorkerInfo],
    outages: Sequence[ProviderOutage],
    queues: Sequence[QueueInfo],
    streams: int,
    now: int,
) -> Iterator[str]:
    """Give the lines of the whole document."""
    counters_by_worker = {info.worker: counters_of(info) for info in workers}
    yield from of_store(census, now)
    yield from of_providers(outages)
    yield from of_queues(queues, now)
    yield from of_fleet(workers)
    yield from of_workers(counters_by_worker)
    yield from of_failures(counters_by_worker)
    yield from family(
        "outlast_open_streams", GAUGE, "Streams that this server has open.", [("", {}, streams)]
    )


def of_store(census: StoreCounts, now: int) -> Iterator[str]:
    oldest = census.oldest_ready_at
    waited = 0.0 if oldest is None else max(0, now - milliseconds_at(oldest)) / 1000
    yield from family(
        "outlast_queued_messages", GAUGE, "Messages that wait.", [("", {}, census.queued)]
    )
    yield from family(
        "outlast_oldest_ready_seconds",
        GAUGE,
        "How long the lane has waited for a worker that has waited longest.",
        [("", {}, waited)],
    )
    lanes: Counter[tuple[str, str]] = Counter()
    failed: Counter[str] = Counter()
    for each in census.lanes:
        lanes[each.status, ",".join(each.wait)] += each.count
        if each.code:
            failed[each.code] += each.count
    about = "Lanes of living sessions by status, and by what those wait for that are parked."
    samples: list[Sample] = [
        ("", {"status": status, "wait": wait}, float(count))
        for (status, wait), count in lanes.items()
    ]
    yield from family("outlast_lanes", GAUGE, about, samples)
    about = "Lanes that rest after a failed turn, which can be retried, by the failure's code."
    codes = [("", {"code": code}, float(count)) for code, count in most_common(failed)]
    yield from family("outlast_failed_lanes", GAUGE, about, codes)


def most_common(counts: Counter[str]) -> Iterator[tuple[str, int]]:
    """Yield the largest counts by name, and all others together."""
    told = counts.most_common(MOST_CODES)
    yield from told
    if rest := counts.total() - sum(count for _, count in told):
        yield OTHER, rest


def of_providers(outages: Sequence[ProviderOutage]) -> Iterator[str]:
    about = "Lanes that wait for a provider which does not answer, by agent, model and its state."
    samples: list[Sample] = [
        ("", {"agent": o.agent, "model": o.model, "state": o.state}, float(o.waiting))
        for o in outages
    ]
    yield from family("outlast_provider_waiting", GAUGE, about, samples)


def of_queues(queues: Sequence[QueueInfo], now: int) -> Iterator[str]:
    def told(name: str, about: str, number: Callable[[QueueInfo], float]) -> Iterator[str]:
        samples: list[Sample] = [("", {"queue": each.name}, number(each)) for each in queues]
        return family(name, GAUGE, about, samples)

    def waited(queue: QueueInfo) -> float:
        since = queue.oldest_at
        return 0.0 if since is None else max(0, now - milliseconds_at(since)) / 1000

    yield from told("outlast_queue_running", "Turns with a place in a queue.", lambda q: q.running)
    yield from told("outlast_queue_waiting", "Turns that wait in a queue.", lambda q: q.waiting)
    about = "For how long the turn that waits in a queue longest has waited."
    yield from told("outlast_queue_oldest_seconds", about, waited)


def of_fleet(workers: Sequence[WorkerInfo]) -> Iterator[str]:
    draining = sum(info.draining for info in workers)
    yield from family(
        "outlast_workers",
        GAUGE,
        "Living workers.",
        [
            ("", {"state": "working"}, len(workers) - draining),
            ("", {"state": "draining"}, draining),
        ],
    )
    for name, about, values in (
        ("held_lanes", "Lanes that it carries now.", {w.worker: w.held for w in workers}),
        ("lane_places", "Lanes that it takes at once.", {w.worker: w.concurrency for w in workers}),
    ):
        samples = [("", {"worker": worker}, float(value)) for worker, value in values.items()]
        yield from family(f"outlast_worker_{name}", GAUGE, about, samples)


FAILURES = {
    "failed_turns": "Turns that have failed in it, by code, agent and model.",
    "provider_outages": "How often a lane in it began to wait for its provider, likewise.",
}
"""Counted by what failed and whose it was."""


def of_failures(counters_by_worker: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, about in FAILURES.items():
        samples: list[Sample] = [
            ("", {"worker": worker, **labels_of(each)}, float(each["count"]))
            for worker, counters in counters_by_worker.items()
            for each in counters.get(name, ())
        ]
        yield from family(f"outlast_{name}_total", COUNTER, about, samples)


def labels_of(counted: Mapping[str, Any]) -> Labels:
    return {name: str(counted[name]) for name in ("code", "agent", "model")}


def of_workers(counters_by_worker: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, about in COUNTERS.items():
        samples = [
            ("", {"worker": worker}, float(counters[name]))
            for worker, counters in counters_by_worker.items()
            if name in counters
        ]
        yield from family(f"outlast_{name}_total", COUNTER, about, samples)
    takeovers = [
        ("", {"worker": worker, "evidence": evidence}, float(count))
        for worker, counters in counters_by_worker.items()
        for evidence, count in counters.get("takeovers", {}).items()
    ]
    about = "Lanes that it took over, by the evidence that their owner was gone."
    yield from family("outlast_takeovers_total", COUNTER, about, takeovers)
    tokens = [
        ("", {"worker": worker, "kind": name.removesuffix("_tokens")}, float(counters[name]))
        for worker, counters in counters_by_worker.items()
        for name in TOKENS
        if name in counters
    ]
    yield from family("outlast_tokens_total", COUNTER, "Tokens that models have used.", tokens)
    yield from of_usage(counters_by_worker)
    steps = [
        sample
        for worker, counters in counters_by_worker.items()
        if "steps" in counters
        for sample in histogram(counters["steps"], {"worker": worker})
    ]
    about = "How long steps took: a model call and the tool calls that it asked for."
    yield from family("outlast_step_seconds", HISTOGRAM, about, steps)


KINDS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
COSTS = {
    "model_calls": ("model_calls", "Model calls that have answered."),
    "unpriced_calls": ("unpriced_calls", "Of these, calls whose price is not known."),
    "usd": ("nano_usd", "What the others have cost, in US dollars."),
}


def of_usage(counters_by_worker: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Tell what models were used for, by agent and model."""
    found = [
        ({"worker": worker, "agent": str(each["agent"]), "model": str(each["model"])}, each)
        for worker, counters in counters_by_worker.items()
        for each in counters.get("usage", ())
    ]
    tokens: list[Sample] = [
        ("", {**whose, "kind": name.removesuffix("_tokens")}, float(each[name]))
        for whose, each in found
        for name in KINDS
    ]
    about = "Tokens that models have used, by agent and model."
    yield from family("outlast_usage_tokens_total", COUNTER, about, tokens)
    for name, (field, about) in COSTS.items():
        scale = 1e-9 if field == "nano_usd" else 1.0
        samples: list[Sample] = [("", whose, each[field] * scale) for whose, each in found]
        yield from family(f"outlast_usage_{name}_total", COUNTER, about, samples)


def histogram(steps: Mapping[str, Any], labels: Labels) -> Iterator[Sample]:
    for limit, count in steps["buckets"].items():
        yield "_bucket", {**labels, "le": limit}, count
    yield "_sum", labels, steps["sum"]
    yield "_count", labels, steps["count"]


def family(name: str, kind: str, about: str, samples: Sequence[Sample]) -> Iterator[str]:
    """Give the lines of one metric; none if there is nothing to say."""
    if not samples:
        return
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for suffix, labels, value in samples:
        pairs = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
        yield f"{name}{suffix}{'{' + pairs + '}' if pairs else ''} {value:.15g}"


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
