"""Writes down, as records, what came of contacting the server of a remote child.

A child behind another server sends no deliveries: its server is contacted instead, when it says
that there is news, and else after pauses that grow. Its requests are shown here like those of a
child in this app, requests that it has dropped are closed, and its end wakes the tool that waits
for it. Owns that and the pauses. `decide.py` says when, `integration/remote` speaks to the server.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.budget import spent_of
from outlast.core.lane import Lane, OpenRequest, RemoteChild, Turn
from outlast.core.name import request_name
from outlast.core.policy import SECOND
from outlast.core.request import authorization_ends, child_ended, close_request, shown_as
from outlast.core.result import ChildContact, RemoteView

LONGEST_PAUSE = 3600 * SECOND
"""The longest pause between two contacts if the other server posts news, or a human is asked
here."""
LONGEST_PAUSE_UNTOLD = 300 * SECOND
"""The longest otherwise."""
CALLBACK_LIFE = 30 * 86_400 * SECOND
"""How long an address for news is open; then there is another."""
MOST_DOUBLINGS = 32


def contacted(lane: Lane, contact: ChildContact, now: int) -> Iterator[r.AnyRecord]:
    """Write down what came of a contact, unless the child's call has ended meanwhile."""
    turn = lane.turn
    child = turn.requests.get(contact.request_id) if turn else None
    remote = child.remote if child else None
    if turn is None or child is None or remote is None:
        return
    # Opened and committed first: the server is asked in the next contact, so that no news falls
    # between.
    if contact.callback:
        yield callback_opened(turn, child, remote, contact.callback, now)
        return
    if contact.started:
        child = replace(child, child=contact.started)
        yield subagent_started(child, remote, contact)
    changes: list[r.AnyRecord] = []
    if view := contact.view:
        shown = shown_of(turn, child)
        # Before the end is looked at: what was asked is closed in either case, and a sign-in says
        # how it went.
        over = closed(shown, view)
        changes += over.values()
        if view.end:
            yield from changes
            yield from child_ended(lane, child, view.end, over)
            if contact.budgets is not None and (spent := spent_of(view.end.usage)):
                yield r.BudgetCharged(call_id="", budgets=contact.budgets, spent=spent)
            return
        changes += opened(lane, child, remote, contact, view, shown)
    yield from changes
    yield next_contact(turn, child, remote, contact, changes, now)


def callback_opened(
    turn: Turn, child: OpenRequest, remote: RemoteChild, name: str, now: int
) -> r.AnyRecord:
    """Open the address for a child's news: before its state is seen, or some could be missed."""
    return r.CallbackOpened(
        request_id=name,
        call_id=child.call_id,
        attempt=turn.calls[child.call_id].attempt,
        name="",
        expires_at=now + CALLBACK_LIFE,
        signer=remote.agent,
        subagent=child.request_id,
    )


def has_callback(turn: Turn, child: OpenRequest) -> bool:
    """Say whether an address for a child's news is open."""
    requests = turn.requests.values()
    return any((q.kind, q.subagent) == ("callback", child.request_id) for q in requests)


def subagent_started(child: OpenRequest, remote: RemoteChild, contact: ChildContact) -> r.AnyRecord:
    return r.SubagentStarted(
        request_id=child.request_id,
        call_id=child.call_id,
        child=child.child,
        agent=remote.agent,
        url=remote.url,
        told=contact.told,
    )


# What the child asks


def shown_of(turn: Turn, child: OpenRequest) -> dict[str, OpenRequest]:
    """Return what a child asks and is open here, by the child's own requests."""
    mine = (q for q in turn.requests.values() if q.origin and q.subagent == child.request_id)
    return {request.origin: request for request in mine}


def closed(shown: dict[str, OpenRequest], view: RemoteView) -> dict[str, r.AnyRecord]:
    """Close what the child asks no longer, by request. Of a sign-in it says how that went."""
    listed = {asked.request_id for asked in view.asked}
    found: dict[str, r.AnyRecord] = {}
    for origin, request in shown.items():
        if request.kind != "authorization" and origin not in listed:
            found[request.request_id] = close_request(request, "superseded")
        elif request.kind == "authorization" and (how := view.sign_ins.get(origin)):
            found[request.request_id] = authorization_ends(request, how)
    return found


def opened(
    lane: Lane,
    child: OpenRequest,
    remote: RemoteChild,
    contact: ChildContact,
    view: RemoteView,
    shown: dict[str, OpenRequest],
) -> Iterator[r.AnyRecord]:
    """Show what the child asks, unless it is shown, or over here; again, if it refused an answer.

    Each has a name of its own: a server may list a request again that it had ceased to list.
    """
    refused = {each.origin: contact.refusals.get(each.request_id, "") for each in remote.answers}
    is_over = {*remote.settled, *(origin for origin, why in refused.items() if not why)}
    number = remote.shown
    for asked in view.asked:
        if asked.request_id in shown or asked.request_id in is_over:
            continue
        if (why := refused.get(asked.request_id)) and isinstance(asked, r.RequestOpened):
            asked = replace(asked, prompt=f"{asked.prompt} (the last answer was refused: {why})")
        number += 1
        name = request_name(lane.session, child.request_id, f"asked#{number}")
        yield shown_as(name, lane, child, asked)


# The next contact


def next_contact(
    turn: Turn,
    child: OpenRequest,
    remote: RemoteChild,
    contact: ChildContact,
    changes: list[r.AnyRecord],
    now: int,
) -> r.AnyRecord:
    """Say when the server is contacted next: at once, if an answer or news came meanwhile."""
    # A server that has something new may have more soon.
    contacts = 0 if changes or contact.refusals else remote.contacts
    has_unsent = any(each.request_id not in contact.refusals for each in remote.answers)
    # News or an answer came while the server was asked: what it said may be of the time before.
    is_due = remote.rounds != contact.rounds or (has_unsent and contact.view is not None)
    return r.SubagentContacted(
        request_id=child.request_id,
        call_id=child.call_id,
        next_at=now + (0 if is_due else pause(turn, child, remote, contact, contacts)),
        contacts=contacts + 1,
        answered=tuple(contact.refusals),
        settled=still_settled(remote, contact),
    )


def pause(
    turn: Turn, child: OpenRequest, remote: RemoteChild, contact: ChildContact, contacts: int
) -> int:
    """Return how long to wait: twice as long after each contact that changed nothing."""
    is_told = (remote.told or contact.told) and has_callback(turn, child)
    asks = contact.view is not None and bool(contact.view.asked)
    longest = LONGEST_PAUSE if is_told or asks else LONGEST_PAUSE_UNTOLD
    return min(max(1, contact.poll) << min(contacts, MOST_DOUBLINGS), longest)


def still_settled(remote: RemoteChild, contact: ChildContact) -> tuple[str, ...]:
    """Return the child's own requests that are over here, and that it may still list."""
    taken = (a.origin for a in remote.answers if contact.refusals.get(a.request_id) == "")
    over = {*remote.settled, *taken}
    if contact.view:
        # Only what it may still list has to be remembered, so this does not grow with what was ever
        # asked.
        over &= {asked.request_id for asked in contact.view.asked}
    return tuple(sorted(over))
