"""The events of a session and of all that it started, here and elsewhere, as one stream."""

from outlast.session.merged_events.source import CalledSession, LocalSource
from outlast.session.merged_events.stream import MergedEvents

__all__ = ["CalledSession", "LocalSource", "MergedEvents"]
