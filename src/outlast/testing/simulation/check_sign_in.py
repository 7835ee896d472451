"""Promises about sign-ins: none is invented, and no user gets another's token."""

from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

from outlast.core import record as r
from outlast.core.name import authorization_name
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence
from outlast.testing.simulation.history import TokenUsed, UserSignedIn


def sign_ins_are_ones_own(evidence: SimulationEvidence) -> Iterator[str]:
    owners = {name: owner_of(session) for name, session in evidence.sessions.items()}
    for entered in evidence.history.of(TokenUsed):
        if entered.owner not in ("", owners[entered.session_id]):
            yield f"{entered.session_id} was given the token of {entered.owner}"
    said = evidence.history.of(UserSignedIn)
    for name, session in evidence.sessions.items():
        mine = [note for note in said if note.owner == owners[name]]
        yield from (f"{name}@{wrong}" for wrong in made_up(evidence, session, mine))


def made_up(
    evidence: SimulationEvidence, session: SessionEvidence, said: list[UserSignedIn]
) -> Iterator[str]:
    """Look for an outcome that no user had caused by then."""
    yes = min((n.number for n in said if n.how == "granted"), default=0)
    no = {n.request_id: n.number for n in reversed(said) if n.how == "denied"}
    asked = {e.request_id: asked_by(e.url) for e in session.records(r.AuthorizationRequired)}
    for entry in session.entries:
        wrote = evidence.written(session.info.session_id, entry.offset)
        now = wrote.number if wrote else 0
        match entry.record:
            case r.AuthorizationCompleted() if not 0 < yes < now:
                yield f"{entry.offset}: nobody had signed in for it"
            case r.AuthorizationFailed(how="denied", request_id=request_id):
                if not 0 < no.get(asked[request_id], 0) < now:
                    yield f"{entry.offset}: nobody had said no to it"


def asked_by(url: str) -> str:
    """Return the request that a sign-in belongs to: the child's own, where a child asks."""
    return authorization_name(dict(parse_qsl(urlsplit(url).query))["state"])


def owner_of(session: SessionEvidence) -> str:
    [started] = session.records(r.SessionStarted)
    return f"{started.tenant}/{started.principal}"
