"""A session as its users hold it: send, answer, read, wait.

Only reads and admits; the work is done by workers, here or anywhere else.
"""

from outlast.session.handle import Receipt, Session
from outlast.session.request import Request, request_of
from outlast.session.rest import AT_REST, is_at_rest, needs_somebody
from outlast.session.result import Result
from outlast.session.waiting import WaitingFor

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
