"""The ids that every log line and span carries: those of the session, turn and call at work.

Set once where work begins, and known to all that is called from there, tasks and threads
included. Knows nothing of what the ids mean.
"""

import logging
from collections.abc import Mapping
from contextvars import ContextVar

NAMES = tuple("session agent model lane turn step call attempt request worker fence".split())
"""The ids of a log line, from the outermost in."""

_known: ContextVar[Mapping[str, object]] = ContextVar("outlast_ids")
_NOTHING: Mapping[str, object] = {}


def known() -> Mapping[str, object]:
    """Return the ids of where the current code stands."""
    return _known.get(_NOTHING)


def enter(**ids: object) -> None:
    """Add ids, for the rest of the current task and all that it begins."""
    # A new mapping, since tasks that have begun before keep the one that they began with.
    _known.set({**_known.get(_NOTHING), **ids})


class KnownIds(logging.Filter):
    """Adds to a log line the ids that it does not bring itself; drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in known().items():
            if name not in record.__dict__:
                setattr(record, name, value)
        return True


def get_logger(name: str) -> logging.Logger:
    """Return a logger of ours: its lines carry the ids of where they are written."""
    log = logging.getLogger(name)
    if not any(isinstance(each, KnownIds) for each in log.filters):
        log.addFilter(KnownIds())
    return log
