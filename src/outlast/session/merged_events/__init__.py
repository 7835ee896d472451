"""The events of a session and of all that it started, here and elsewhere, as one stream."""

from outlast.session.merged_events.source import Called, Here
from outlast.session.merged_events.stream import Interleaving

__all__ = ["Called", "Here", "Interleaving"]
