"""A session as its users hold it: send, answer, read, wait.

Only reads and admits; the work is done by workers, here or anywhere else.
"""

from outlast.session.handle import Receipt, Session
from outlast.session.request import Request, request_of
from outlast.session.result import Result
from outlast.session.waiting import AT_REST, WaitingFor, is_at_rest, needs_somebody

__all__ = [
    "AT_REST",
    "Receipt",
    "Request",
    "Result",
    "Session",
    "WaitingFor",
    "is_at_rest",
    "needs_somebody",
    "request_of",
]
