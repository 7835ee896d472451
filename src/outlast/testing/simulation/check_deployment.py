"""Whether lanes were only carried by deployments that may carry them, and nothing was left behind.

Judged by what the store knew when it gave a lane out, and by what commits had it pin.
"""

from collections.abc import Iterator

from outlast.store import ANYONE
from outlast.testing.simulation.evidence import SimulationEvidence
from outlast.testing.simulation.history import (
    DeploymentPromoted,
    DeploymentRetired,
    LaneGivenOut,
    LanePinned,
)


def deployments_hold(evidence: SimulationEvidence) -> Iterator[str]:
    retired: set[str] = set()
    for note in evidence.history.notes:
        match note:
            case DeploymentPromoted():
                retired.discard(note.name)
            case DeploymentRetired():
                retired = (retired | {note.name}) - {note.to}
                if note.left:
                    yield f"{note.left} lanes were left on {note.name} when it was retired"
            case LanePinned() if note.to in retired:
                yield f"{note.session_id} {note.lane} was pinned to {note.to}, which is retired"
            case LaneGivenOut():
                if why := forbidden(note):
                    yield f"{note.session_id} {note.lane} was given to {note.deployment}: {why}"


def forbidden(note: LaneGivenOut) -> str:
    """Say why a lane was not to be given to a worker of a deployment."""
    if note.pinned_to in (note.deployment, ANYONE):
        return ""
    if note.pinned_to and note.stays:
        return f"it stays with {note.pinned_to}"
    if note.pinned_to and note.is_tended:
        return f"{note.pinned_to} has workers"
    if note.in_turn and not note.pinned_to:
        return "its turn is pinned to nothing"
    return "" if note.is_current else "another deployment is the current one"
