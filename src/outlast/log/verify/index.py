"""Compares the indexes that the log implies with those that the store has.

`Indexes` builds deliveries, requests, tokens, usage and budgets anew from the entries of one log,
and the functions say where the store's rows differ. Lanes and snapshots are compared in
`stored.py`, and the log itself is judged in `log.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from outlast.core import record as r
from outlast.core.budget_fold import changes_of
from outlast.core.fold import ARRIVALS
from outlast.core.index import Index, Opening, index, opened
from outlast.core.instant import date_of, date_or_none, rfc3339
from outlast.core.usage import UsageChange, UsageRow, date_of_day, day_of, usage_of
from outlast.log.verify.budget import budget_name
from outlast.log.verify.rule import Wrong
from outlast.store import BudgetUse, DeliveryInfo, FailureInfo, RequestInfo


class Indexes:
    """Built anew from the log, entry by entry."""

    def __init__(self, session_id: str, tenant: str, agent: str) -> None:
        self.deliveries: dict[str, DeliveryInfo] = {}
        self.requests: dict[str, RequestInfo] = {}
        self.tokens: dict[str, bool] = {}
        self.failures: dict[str, FailureInfo] = {}
        """By lane."""
        self.over = ""
        self.budgets: dict[str, BudgetUse] = {}
        self.children: dict[str, str] = {}
        """By the request by which a lane waits for each."""
        self.usage: dict[str, UsageRow] = {}
        """By day, model, principal and remote agent."""
        self._session_id = session_id
        self._tenant = tenant
        self._agent = agent

    def add(self, entry: r.Entry) -> None:
        """Take in the next entry."""
        if type(entry.record) in ARRIVALS:
            self._arrive(entry)
        else:
            self._change(index((entry.record,)), entry)
            if isinstance(entry.record, r.SubagentCalled):
                self.children[entry.record.request_id] = entry.record.child
            for change in usage_of((entry.record,)):
                self._use(change, day_of(entry.at))
            for charge in changes_of((entry.record,)):
                before = self.budgets.get(budget_name(charge.key)) or BudgetUse(charge.key)
                self.budgets[budget_name(charge.key)] = replace(
                    before,
                    reserved=before.reserved + charge.reserved,
                    spent=before.spent + charge.spent,
                )

    def queued(self, lane: str) -> int:
        """Count the messages that wait in a lane."""
        waiting = (d for d in self.deliveries.values() if d.lane == lane and d.state == "queued")
        return sum(d.kind in ("message", "retry") for d in waiting)

    def _arrive(self, entry: r.Entry) -> None:
        match entry.record:
            case r.SessionStarted(token=token):
                self.tokens |= {token: True} if token else {}
            case r.DeliveryQueued() as e:
                self._queue(entry, e.delivery_id, e.kind)
                if request := self.requests.get(e.request_id):
                    self.requests[e.request_id] = replace(request, state="answered")
            case r.CancelRequested() as e:
                self._queue(entry, e.delivery_id, "cancel")
            case r.RequestRelayed() as e:
                self._queue(entry, e.delivery_id, "relay")
            case r.StateChangeRequested() as e:
                self._queue(entry, e.delivery_id, "state")
            case r.ContextChangeRequested() as e:
                self._queue(entry, e.delivery_id, "context")
            case r.EventSent() as e:
                self._queue(entry, e.delivery_id, "event")

    def _queue(self, entry: r.Entry, delivery_id: str, kind: str) -> None:
        self.deliveries[delivery_id] = DeliveryInfo(
            session_id=self._session_id,
            lane=entry.lane,
            delivery_id=delivery_id,
            kind=kind,
            state="queued",
            outcome="",
            turn="",
            offset=entry.offset,
            settled_offset=0,
        )

    def _change(self, changes: Index, entry: r.Entry) -> None:
        for change in changes.deliveries:
            if delivery := self.deliveries.get(change.delivery_id):
                self.deliveries[change.delivery_id] = replace(
                    delivery,
                    state=change.state,
                    outcome=change.outcome,
                    turn=change.turn or delivery.turn,
                    settled_offset=entry.offset if change.state == "settled" else 0,
                )
        for asked in changes.opened:
            self.requests[asked.request_id] = RequestInfo(
                request_id=asked.request_id,
                session_id=self._session_id,
                lane=entry.lane,
                kind=asked.kind,
                state="open",
                expires_at=date_or_none(asked.expires_at),
                data=asked.data,
                tenant=self._tenant,
                agent=self._agent,
            )
        for closed in changes.closed:
            if request := self.requests.get(closed.request_id):
                self.requests[closed.request_id] = replace(request, state=closed.how)
        if changes.clears_failure:
            self.failures.pop(entry.lane, None)
        elif failure := changes.failure:
            self.failures[entry.lane] = FailureInfo(
                failure.code, failure.message, date_of(entry.at), failure.turn
            )
        self._change_tokens(changes)

    def _use(self, change: UsageChange, day: int) -> None:
        model, principal, remote, used = astuple(change)
        row = UsageRow(self._tenant, self._agent, model, principal, remote, day, used)
        if known := self.usage.get(name := usage_name(row)):
            row = replace(row, used=known.used + used)
        self.usage[name] = row

    def _change_tokens(self, changes: Index) -> None:
        for token in changes.tokens:
            # Taken again it is the newest, and stands last.
            self.tokens.pop(token, None)
            self.tokens[token] = True
        self.over = self.over or changes.over
        for token in tuple(self.tokens) if self.over else changes.revoked:
            if token in self.tokens:  # else it is another session's, and stays that
                self.tokens[token] = False


def wrong_deliveries(log: Indexes, found: Sequence[DeliveryInfo]) -> Iterator[Wrong]:
    stored = {delivery.delivery_id: delivery for delivery in found}
    yield from compare("DELIVERY_INDEX", "delivery", log.deliveries, stored)


def wrong_requests(log: Indexes, found: Sequence[RequestInfo]) -> Iterator[Wrong]:
    stored = {request.request_id: normal(request) for request in found}
    yield from compare("REQUEST_INDEX", "request", log.requests, stored)


def normal(request: RequestInfo) -> RequestInfo:
    """Return a request with its text as it would be written today."""
    try:
        asked = msgspec.json.decode(request.data, type=Opening)
    except msgspec.MsgspecError:
        return request
    return replace(request, data=opened(asked).data)


def wrong_tokens(log: Indexes, found: Sequence[tuple[str, bool]]) -> Iterator[Wrong]:
    if list(log.tokens.items()) == list(found):
        return
    stored = dict(found)
    for number, (token, lives) in enumerate(log.tokens.items(), 1):
        if stored.get(token) is not lives:
            known = {None: "unknown", True: "living", False: "dead"}[stored.get(token)]
            due = "living" if lives else "dead"
            yield "TOKEN_INDEX", f"continuation token {number} is {known}; by the log it is {due}"
    if list(log.tokens) != list(stored) and set(log.tokens) <= set(stored):
        extra = len(stored) - len(log.tokens)
        what = f"{extra} that the log never gave out" if extra else "another order than the log"
        yield "TOKEN_INDEX", f"the list of continuation tokens has {what}"


def wrong_usage(log: Indexes, found: Sequence[UsageRow]) -> Iterator[Wrong]:
    stored = {usage_name(row): row for row in found}
    yield from compare("USAGE_INDEX", "usage", log.usage, stored)


def wrong_budgets(log: Indexes, found: Sequence[BudgetUse]) -> Iterator[Wrong]:
    stored = {budget_name(use.key): use for use in found}
    yield from compare("BUDGET_INDEX", "what is used of", log.budgets, stored)


def usage_name(row: UsageRow) -> str:
    """Return what a row is known by within its session."""
    what = f"remote agent {row.remote!r}" if row.remote else f"{row.model!r}"
    return f"of {what} for {row.principal!r} on {date_of_day(row.day)}"


def compare(
    code: str, kind: str, log: Mapping[str, Struct], stored: Mapping[str, Struct]
) -> Iterator[Wrong]:
    """Yield where what is stored differs from what the log says, name by name."""
    for name in log.keys() | stored.keys():
        if name not in stored:
            yield code, f"{kind} {name} is in the log and not in the index"
        elif name not in log:
            yield code, f"{kind} {name} is in the index and not in the log"
        else:
            yield from differences(code, f"{kind} {name}", fields(log[name]), fields(stored[name]))


def fields(value: Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(value)


def differences(
    code: str, what: str, log: Mapping[str, Any], stored: Mapping[str, Any]
) -> Iterator[Wrong]:
    for name in names_that_differ(log, stored):
        found, due = shown(stored[name]), shown(log[name])
        yield code, f"{what}: {name} is {found}; by the log it is {due}"


def shown(value: Any) -> str:
    return rfc3339(value) if isinstance(value, datetime) else repr(value)


def names_that_differ(log: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterable[str]:
    return (name for name in log if log[name] != stored[name])
